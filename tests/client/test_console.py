from __future__ import annotations

import io
import threading

from msgspec.structs import replace

from trainvitals import wire
from trainvitals.console import MAX_LINES, WINDOW_S, Callback, Console

NOTICE = wire.IncidentNotice(
    incident_id="i1",
    kind="gradual_divergence",
    severity="critical",
    state="open",
    onset_step=812,
    detected_step=901,
    verdict="learning rate 0.1 too high",
    url="http://h/runs/1",
)
ONSET = "trainvitals: Gradual divergence since step 812: learning rate 0.1 too high -> http://h/runs/1"
TIMEOUT_S = 10.0


class Terminal(io.StringIO):
    """What the user sees."""

    def __init__(self, *, is_terminal: bool = False) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    @property
    def lines(self) -> list[str]:
        return self.getvalue().splitlines()


def test_an_incident_is_one_line_at_its_onset_and_one_at_its_end() -> None:
    terminal = Terminal()
    console = Console(lambda: terminal)
    for state in ("open", "open", "resolved", "resolved"):
        console.tell(replace(NOTICE, state=state), now=0.0)
    assert terminal.lines == [
        ONSET,
        "trainvitals: Gradual divergence since step 812 is over -> http://h/runs/1",
    ]


def test_news_of_an_incident_that_goes_on_is_one_line_each() -> None:
    terminal = Terminal()
    console = Console(lambda: terminal)
    for news in ("", "the loss scale is sinking", "the loss scale is sinking", "", "the loss scale is 0"):
        console.tell(replace(NOTICE, news=news), now=0.0)
    assert terminal.lines == [
        ONSET,
        "trainvitals: Gradual divergence since step 812: the loss scale is sinking -> http://h/runs/1",
        "trainvitals: Gradual divergence since step 812: the loss scale is 0 -> http://h/runs/1",
    ]


def test_a_warning_that_becomes_critical_is_told_again() -> None:
    terminal = Terminal()
    console = Console(lambda: terminal)
    for severity in ("warning", "critical", "critical"):
        console.tell(replace(NOTICE, severity=severity), now=0.0)
    assert terminal.lines == [ONSET, ONSET.replace("812:", "812 is critical now:")]


def test_a_server_cannot_steer_the_terminal() -> None:
    terminal = Terminal()
    nasty = replace(NOTICE, kind="\x1b]0;k\x07", verdict="\x1b[2J\n", url="http://h/\x1b[31m\n")
    console = Console(lambda: terminal)
    console.tell(nasty, now=0.0)
    console.tell(replace(nasty, news="\x1b[2J\n"), now=0.0)
    assert len(terminal.lines) == 2
    assert all(line.isprintable() for line in terminal.lines)


def test_an_alarm_that_was_wrong_is_taken_back() -> None:
    terminal = Terminal()
    console = Console(lambda: terminal)
    for state in ("open", "withdrawn"):
        console.tell(replace(NOTICE, state=state, url=""), now=0.0)
    assert terminal.lines[1] == "trainvitals: Gradual divergence since step 812 is withdrawn"


def test_what_is_only_information_or_ended_before_our_time_is_not_told() -> None:
    terminal = Terminal()
    console = Console(lambda: terminal)
    console.tell(replace(NOTICE, severity="info"), now=0.0)
    console.tell(replace(NOTICE, state="resolved"), now=0.0)
    assert terminal.lines == []


def test_a_storm_is_cut_short_until_it_is_over() -> None:
    terminal = Terminal()
    console = Console(lambda: terminal)
    for index in range(50):
        console.tell(replace(NOTICE, incident_id=str(index)), now=1.0)
    assert len(terminal.lines) == MAX_LINES + 1
    assert terminal.lines[-1] == "trainvitals: more incidents; they are on the page"
    console.tell(replace(NOTICE, incident_id="later"), now=1.0 + WINDOW_S)
    assert terminal.lines[-1] == ONSET


def test_below_a_progress_bar_the_line_begins_on_a_line_of_its_own() -> None:
    terminal = Terminal(is_terminal=True)
    Console(lambda: terminal).tell(NOTICE, now=0.0)
    assert terminal.getvalue() == f"\n{ONSET}\n"


def test_a_verdict_cannot_break_the_terminal() -> None:
    terminal = Terminal()
    Console(lambda: terminal).tell(replace(NOTICE, verdict="a\x1b[2J\nb" + "c" * 5000), now=0.0)
    (line,) = terminal.lines
    assert "\x1b" not in line
    assert len(line) < 500


def test_a_terminal_that_knows_only_ascii_gets_what_it_can_show() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    Console(lambda: stream).tell(replace(NOTICE, verdict="dé"), now=0.0)
    assert b"812: d?" in raw.getvalue()


def test_a_closed_terminal_hurts_nobody() -> None:
    terminal = Terminal()
    terminal.close()
    Console(lambda: terminal).tell(NOTICE, now=0.0)


def test_a_callback_gets_every_notice_even_after_it_failed() -> None:
    got: list[str] = []
    done = threading.Event()

    def function(notice: wire.IncidentNotice) -> None:
        got.append(notice.incident_id)
        if len(got) == 3:
            done.set()
        raise RuntimeError("the user's function fails")

    callback = Callback(function)
    for name in "abc":
        callback.call(replace(NOTICE, incident_id=name))
    assert done.wait(TIMEOUT_S)
    assert got == ["a", "b", "c"]


def test_a_slow_callback_holds_nobody_up_and_the_latest_notices_win() -> None:
    got: list[str] = []
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def function(notice: wire.IncidentNotice) -> None:
        begun.set()
        assert go_on.wait(TIMEOUT_S)
        got.append(notice.incident_id)
        if notice.incident_id == "299":
            done.set()

    callback = Callback(function)
    callback.call(replace(NOTICE, incident_id="first"))
    assert begun.wait(TIMEOUT_S)
    for index in range(300):
        callback.call(replace(NOTICE, incident_id=str(index)))
    go_on.set()
    assert done.wait(TIMEOUT_S)
    assert got == ["first", *(str(index) for index in range(200, 300))]


def test_what_is_said_before_a_progress_bar_begins_no_new_line() -> None:
    terminal = Terminal(is_terminal=True)
    console = Console(lambda: terminal)
    console.say("here", now=0.0, is_below=False)
    console.say("stopped", now=0.0)
    assert terminal.getvalue() == "trainvitals: here\n\ntrainvitals: stopped\n"


def test_no_more_is_said_than_fits_in_a_minute() -> None:
    terminal = Terminal()
    console = Console(lambda: terminal)
    for _ in range(MAX_LINES + 5):
        console.say("again", now=0.0)
    assert len(terminal.lines) == MAX_LINES
