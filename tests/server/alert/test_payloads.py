"""The three forms of a message: what they say, their limits, and that nobody can be mentioned by a name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from alert_samples import INCIDENT, SINKING_TEXT
from trainvitals_server.alert.endpoint import FORMATS, Format
from trainvitals_server.alert.message import Event, Message, Run, capped_message, trial_message
from trainvitals_server.alert.payloads import MAX_GENERIC_BYTES, render
from trainvitals_server.finding import Evidence
from trainvitals_server.incident import Cause, Incident

BASE = "https://vitals.example.org/team"
URL = "https://vitals.example.org/team/runs/run1"
RUN = Run(run_id="run1", project="resnet", name="lr 3e-4")
HOSTILE = (
    "@everyone <!channel> <@U123> <https://evil.example|click> [click](https://evil.example) ```"
    " *b* _i_ ~s~ `c` & </b> \u202e\x00\n"
)


def _message(incident: Incident = INCIDENT, event: Event = "incident.opened", run: Run = RUN) -> Message:
    return Message(event=event, at=1_767_268_800.25, run=run, incident=incident)


def _read(message: Message, form: Format) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    answer: dict[str, Any] = json.loads(render(message, form, BASE), parse_constant=refuse)
    return answer


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for item in value.values() for text in _texts(item)]
    return [text for item in value for text in _texts(item)] if isinstance(value, list) else []


def _units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def _hostile(text: str) -> Message:
    """Return a message in which every text that a program can choose is `text`."""
    incident = replace(
        INCIDENT,
        layer=text,
        verdict=text,
        why=[text] * 40,
        next=[text] * 40,
        evidence=[Evidence(text=text, series=text, step=1, value=1.0)] * 40,
        causes=[Cause(cause=text, confidence=1.0, supports=[text] * 40, fix=text, snippet=text)] * 40,
        first_bad_layers=[text] * 3000,
        first_bad_operation={text: {"operation": [text] * 40}},
    )
    return _message(incident, run=Run(run_id=text, project=text, name=text))


def test_the_generic_body_says_what_where_since_when_and_where_to_read_on() -> None:
    body = _read(_message(), "generic")
    assert body["type"] == "incident.opened"
    assert body["timestamp"] == "2026-01-01T12:00:00.250Z"
    assert body["data"]["url"] == URL
    assert body["data"]["text"] == "🔴 critical: Gradual divergence in resnet / lr 3e-4, since step 812"
    incident = body["data"]["incident"]
    assert (incident["kind"], incident["onset_step"], incident["lead_steps"]) == (
        "gradual_divergence",
        812,
        61,
    )
    assert (incident["verdict"], incident["why"], incident["next"]) == (
        INCIDENT.verdict,
        INCIDENT.why,
        INCIDENT.next,
    )
    assert incident["causes"][0]["for"] == ["gradient norm led the loss"]


def test_nan_the_infinities_and_missing_are_four_different_things() -> None:
    evidence = _read(_message(), "generic")["data"]["incident"]["evidence"]
    assert [seen["value"] for seen in evidence] == ["NaN", "Infinity", "-Infinity", None]


@pytest.mark.parametrize("form", ["slack", "discord"])
def test_a_chat_message_names_the_values_too(form: Format) -> None:
    text = " ".join(_texts(_read(_message(), form)))
    for value in ("loss NaN at step 901", "Infinity at step 900", "Infinity at step 899", "not measured"):
        assert value in text.replace("\\", "")


@pytest.mark.parametrize("form", ["slack", "discord"])
def test_a_chat_message_carries_verdict_why_next_cause_snippet_and_link(form: Format) -> None:
    text = "\n".join(_texts(_read(_message(), form))).replace("\\", "").replace("\u200b", "")
    cause = INCIDENT.causes[0]
    for part in (INCIDENT.verdict, INCIDENT.why[0], INCIDENT.next[0], cause.fix, cause.snippet, URL):
        assert part in text
    assert "learning rate too high (80%)" in text


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "text", [HOSTILE * 100, "x" * 10_000, "🧨" * 10_000, "&" * 10_000, "`" * 10_000, "@" * 10_000]
)
def test_no_name_breaks_a_limit(form: Format, text: str) -> None:
    body = render(_hostile(text), form, BASE)
    assert len(body) <= MAX_GENERIC_BYTES
    if form == "slack":
        _assert_slack_accepts(json.loads(body))
    if form == "discord":
        _assert_discord_accepts(json.loads(body))


def _assert_slack_accepts(body: dict[str, Any]) -> None:
    assert _units(body["text"]) <= 40_000
    assert len(body["blocks"]) <= 50
    for block in body["blocks"]:
        limit = {"header": 150, "section": 3_000}[block["type"]]
        assert 0 < _units(block["text"]["text"]) <= limit


def _assert_discord_accepts(body: dict[str, Any]) -> None:
    (embed,) = body["embeds"]
    assert 0 < _units(embed["title"]) <= 256
    assert _units(embed["description"]) <= 4_096
    assert len(embed["fields"]) <= 25
    for field in embed["fields"]:
        assert 0 < _units(field["name"]) <= 256
        assert 0 < _units(field["value"]) <= 1_024
    fields = "".join(field["name"] + field["value"] for field in embed["fields"])
    assert _units(embed["title"] + embed["description"] + fields) <= 6_000
    assert _units(embed["url"]) <= 2_048


def test_slack_mentions_and_links_are_text() -> None:
    body = _read(_hostile(HOSTILE), "slack")
    marked = [block["text"] for block in body["blocks"] if block["text"]["type"] == "mrkdwn"]
    assert all(text["verbatim"] for text in marked)
    link = marked[-1]["text"]
    for text in [body["text"], *(each["text"] for each in marked[:-1])]:
        assert "<" not in text
        assert "@everyone" not in text or text.startswith("```")
    assert link.count("<") == 1
    assert link.startswith(f"<{BASE}/runs/")


def test_discord_mentions_nobody() -> None:
    body = _read(_hostile(HOSTILE), "discord")
    assert body["allowed_mentions"] == {"parse": []}
    told = "\n".join(text for text in _texts(body["embeds"][0]) if not text.startswith("```"))
    for mention in ("@everyone", "@U123"):
        assert mention not in told


def test_discord_shows_a_link_in_a_name_as_text() -> None:
    (embed,) = _read(_message(run=Run(run_id="run1", name="[click](https://evil.example)")), "discord")[
        "embeds"
    ]
    assert r"\[click\]\(https\:" in embed["title"]


def test_a_code_fence_in_a_snippet_does_not_end_the_block() -> None:
    cause = Cause(cause="unknown", confidence=0.5, snippet="``` @everyone")
    for form, lines in (("slack", 1), ("discord", 1)):
        texts = _texts(_read(_message(replace(INCIDENT, causes=[cause])), form))  # type: ignore[arg-type]
        (block,) = [text for text in texts if text.startswith("```")]
        assert block.count("```") == 2 * lines


@pytest.mark.parametrize("form", FORMATS)
def test_control_characters_do_not_reach_a_chat(form: Format) -> None:
    texts = _texts(_read(_hostile(HOSTILE), form))
    if form != "generic":
        assert not any(mark in text for text in texts for mark in "\x00\u202e")


@pytest.mark.parametrize(
    ("event", "state", "opening"),
    [
        ("incident.opened", "open", "🔴 critical:"),
        ("incident.opened", "resolved", "🔴 critical, passed by now:"),
        ("incident.escalated", "open", "🔴 Now critical:"),
        ("incident.updated", "open", "🔴 Still critical:"),
        ("incident.resolved", "resolved", "✅ Passed:"),
        ("incident.resolved", "withdrawn", "✅ Withdrawn, a false alarm:"),
    ],
)
def test_the_first_words_say_what_changed(event: Event, state: str, opening: str) -> None:
    message = _message(replace(INCIDENT, state=state), event)
    assert _read(message, "generic")["data"]["text"].startswith(opening)


@pytest.mark.parametrize("form", FORMATS)
def test_an_update_says_what_is_new(form: Format) -> None:
    message = replace(_message(event="incident.updated"), text=SINKING_TEXT)
    texts = [text.replace("\\", "") for text in _texts(_read(message, form))]
    assert any(SINKING_TEXT[1:] in text for text in texts)


@pytest.mark.parametrize("form", FORMATS)
def test_a_message_without_an_incident_links_to_the_board(form: Format) -> None:
    for message in (trial_message(0.0), capped_message(0.0, 20, 600.0)):
        assert f"{BASE}/" in "\n".join(_texts(_read(message, form)))


def test_a_run_id_cannot_leave_its_place_in_the_link() -> None:
    body = _read(_message(run=Run(run_id="../login?token=x#y")), "generic")
    assert body["data"]["url"] == f"{BASE}/runs/..%2Flogin%3Ftoken%3Dx%23y"


def test_the_same_message_gives_the_same_bytes() -> None:
    assert render(_message(), "generic", BASE) == render(_message(), "generic", BASE)
