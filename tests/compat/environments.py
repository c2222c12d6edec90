"""Which versions of Keras are checked, and what each needs installed."""

from __future__ import annotations

from dataclasses import dataclass

TESTS = ("pytest>=8.3", "pytest-timeout>=2.3")


@dataclass(frozen=True, slots=True)
class Environment:
    """One row of the table; environments of one `folder` share it."""

    name: str
    folder: str
    requirements: tuple[str, ...]
    keras: str  # the module that trains: keras or tf_keras
    backend: str = "tensorflow"
    tests: tuple[str, ...] = ("test_training.py", "test_failing_step.py", "test_replicas.py")


_OLDEST = ("tensorflow==2.16.*", "keras==3.3.*", "tf_keras==2.16.*")
_NEWEST = ("tensorflow", "keras", "tf_keras")

ENVIRONMENTS = (
    Environment("oldest", "oldest", _OLDEST, "keras"),
    Environment("newest", "newest", _NEWEST, "keras"),
    Environment("tf_keras oldest", "oldest", _OLDEST, "tf_keras"),
    Environment("tf_keras newest", "newest", _NEWEST, "tf_keras"),
    Environment("jax", "jax", ("keras", "jax"), "keras", "jax", ("test_other_backend.py",)),
)
