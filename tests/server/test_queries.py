"""The REST interface of a real server, over a database that was recorded before it started."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx2 as httpx
import numpy as np
import pytest

from client_frames import hello, packet, steps
from recorded import NOW, Cell, Recorder, main_line, open_database
from server_process import ServerProcess, running_server
from trainvitals.wire import Bye, Event
from trainvitals_server import codec
from trainvitals_server.finding import Evidence
from trainvitals_server.incident import Cause, Incident
from trainvitals_server.store.database import Database
from trainvitals_server.store.events import load_events
from trainvitals_server.store.incidents import save_incident

FIVE: list[Cell] = [0.1, math.nan, math.inf, -math.inf, None]
SPELLED = ["0.1", "NaN", "Infinity", "-Infinity", ""]


def incident(run_id: str, number: int, **fields: Any) -> Incident:  # noqa: ANN401 - any field of an Incident
    values: dict[str, Any] = {
        "id": f"i{number}", "run_id": run_id, "kind": "sudden_nan", "severity": "critical",
        "onset_step": number, "detected_step": number, "verdict": f"It broke at step {number}.", "late": True,
    }  # fmt: skip
    return Incident(**values | fields)


def validation(seq: int, step: int, val_loss: float) -> Event:
    return Event(seq=seq, step=step, kind="validation", time=NOW, data={"epoch": step, "val_loss": val_loss})


def record(database: Database) -> dict[str, Recorder]:
    """Record what the tests of this module ask for."""
    five = Recorder(database, run_id="five")
    five.steps(range(10, 15), {"loss": FIVE, "grad_norm": [1.0, 2.0, 3.0, 4.0, 5.0]})
    five.steps([20], {"loss": [2.0]})
    five.send(Bye(seq=3, status="finished"))
    five.compact(up_to_seq=1)

    long = Recorder(database, run_id="long")
    cells = np.random.default_rng(1).normal(size=20_000)
    cells[[777, 12_345, 19_000]] = [1e30, math.nan, -math.inf]
    for begin in range(0, 20_000, 2000):
        long.steps(range(begin, begin + 2000), {"loss": cells[begin : begin + 2000].tolist()})
    while long.compact(up_to_seq=9):
        pass

    old = Recorder(database, run_id="resumed", session_id="old")
    old.layout(1, ["a", 'b,"c'])
    old.steps([0, 1, 2], {"loss": [1.0, 1.0, 1.0]}, {"layer_grad_norm": [1, 2, 3, None, 5, 6]}, layout_id=1)
    new = Recorder(database, run_id="resumed", session_id="new", ordinal=1, resume_step=2)
    new.steps([2, 3], {"loss": [2.0, 2.0]}, dtype="f4")

    old.send(*(validation(3 + i, step=i, val_loss=[0.5, math.nan, 9.0][i]) for i in range(3)))
    new.send(Event(seq=2, step=2, kind="resume", data={"step": 2}), validation(3, step=3, val_loss=0.25))

    Recorder(database, run_id="silent")
    judged = Recorder(database, run_id="judged")
    judged.steps([0], {"grad_norm": [1.0]})
    cause = Cause(cause="log_of_zero", confidence=0.5, supports=["a reason"])
    evidence = [Evidence(text="grad_norm", value=math.inf)]
    for saved in (
        incident("judged", 2, severity="warning", state="resolved"),
        incident("judged", 1, causes=[cause], evidence=evidence),
        incident("judged", 0, state="withdrawn"),
    ):
        judged.do(partial(save_incident, incident=saved, now=NOW))
    judged.do(
        lambda c: c.execute("UPDATE run SET project = '100%', tags = '[\"a_b\"]' WHERE run_id = 'judged'")
    )
    return {"five": five, "long": long, "old": old, "new": new}


class Site:
    """A server, and what was recorded before it started."""

    def __init__(self, server: ServerProcess, recorded: dict[str, Recorder]) -> None:
        self.server, self.recorded = server, recorded

    def response(self, path: str, **query: str | float) -> httpx.Response:
        return httpx.get(f"{self.server.url}/api/v1/runs{path}", params=query)

    def get(self, path: str, **query: str | float) -> Any:  # noqa: ANN401 - JSON
        response = self.response(path, **query)
        assert response.status_code == 200, response.text
        return json.loads(response.content, parse_constant=pytest.fail)

    def ids(self, **query: str | float) -> list[str]:
        return sorted(run["run_id"] for run in self.get("", **query)["runs"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("data")
    with open_database(folder) as database:
        recorded = record(database)
    with running_server(folder) as server:
        yield Site(server, recorded)


def cells(column: dict[str, str]) -> list[str]:
    values, present = codec.decode_column(column)
    return [
        codec.spell_number(float(value)) if flag else "" for value, flag in zip(values, present, strict=True)
    ]


def test_few_rows_come_raw_and_the_five_kinds_of_cells_stay_apart(site: Site) -> None:
    answer = site.get("/five/series", names="loss,grad_norm", to=19)
    assert (answer["raw"], answer["from"], answer["to"]) == (True, 10, 19)
    assert cells(answer["series"]["loss"]["step"]) == ["10.0", "11.0", "12.0", "13.0", "14.0"]
    assert cells(answer["series"]["loss"]["value"]) == SPELLED
    assert cells(answer["series"]["grad_norm"]["value"]) == ["1.0", "2.0", "3.0", "4.0", "5.0"]


def test_a_series_that_a_run_does_not_have_is_left_out(site: Site) -> None:
    assert list(site.get("/five/series", names="loss,no_such")["series"]) == ["loss"]
    assert site.get("/five/series", names="no_such")["series"] == {}


def test_many_rows_come_in_buckets_that_lose_nothing(site: Site) -> None:
    answer = site.get("/long/series", names="loss", pixels=100)
    loss = answer["series"]["loss"]
    told = {name: codec.decode_column(column)[0] for name, column in loss.items()}
    assert not answer["raw"]
    assert len(told["step"]) <= 100
    assert told["count"].sum() == 20_000
    assert (told["n_nan"].sum(), told["n_neginf"].sum(), told["n_posinf"].sum()) == (1, 1, 0)
    assert told["argmax"][np.nanargmax(told["max"])] == 777
    assert set(loss) == {
        "step", "last_step", "first", "min", "argmin", "max", "argmax", "last", "count", "n_nan", "n_posinf",
        "n_neginf", "n_missing",
    }  # fmt: skip


def test_a_zoom_is_raw_again_and_both_ends_are_included(site: Site) -> None:
    query: dict[str, str | float] = {"names": "loss", "from": 12_344.5, "to": 12_346}
    answer = site.get("/long/series", **query)
    assert answer["raw"]
    assert cells(answer["series"]["loss"]["step"]) == ["12345.0", "12346.0"]
    assert cells(answer["series"]["loss"]["value"])[0] == "NaN"


def test_a_resumed_run_has_a_main_line_and_a_ghost(site: Site) -> None:
    answer = site.get("/resumed/series", names="loss")
    assert cells(answer["series"]["loss"]["value"]) == ["1.0", "1.0", "2.0", "2.0"]
    assert [branch["ghost"] for branch in answer["sessions"]] == [{"first_step": 2, "last_step": 2}, None]
    ghost = site.get("/resumed/series", names="loss", session="old")
    assert cells(ghost["series"]["loss"]["value"]) == ["1.0", "1.0", "1.0"]


def test_events_follow_the_main_line_and_a_non_finite_number_is_told_by_name(site: Site) -> None:
    events = site.get("/resumed/events", kind="validation")["events"]
    assert [(event["step"], event["data"]["val_loss"]) for event in events] == [
        (0, 0.5),
        (1, "NaN"),
        (3, 0.25),
    ]
    assert [event["kind"] for event in site.get("/resumed/events")["events"]][2:] == ["resume", "validation"]
    assert site.get("/resumed/events", rank=1)["events"] == []
    assert site.response("/resumed/events", kind="party").status_code == 400


def test_of_very_many_events_the_newest_come() -> None:
    with open_database() as database:
        many = Recorder(database)
        many.send(*(validation(1 + i, step=i, val_loss=1.0) for i in range(5)))
        events = database.read(lambda connection: load_events(connection, many.run_id, rank=0, limit=2))
    assert [event.step for event in events] == [3, 4]


def test_layers_come_as_a_table_with_their_names(site: Site) -> None:
    table = site.get("/resumed/series", names="layer_grad_norm", session="old")["series"]["layer_grad_norm"]
    assert table["layers"] == ["a", 'b,"c']
    assert cells(table["value"]) == ["1.0", "2.0", "3.0", "", "5.0", "6.0"]


def test_a_long_table_of_layers_shows_the_worst_of_each_bucket(site: Site) -> None:
    from trainvitals_server.answer import tell_series
    from trainvitals_server.series import Points, bucketize
    from trainvitals_server.store.reading import SeriesData

    values = np.array([[1.0, math.nan], [5.0, math.inf], [2.0, 1.0], [math.inf, -math.inf], [0.0, 0.0]])
    present = np.ones((5, 2), dtype=bool)
    present[4] = [True, False]
    rows = bucketize(Points(np.arange(5), values, present), 2)
    assert cells(tell_series(SeriesData(rows, ("a", "b")))["value"]) == [
        "5.0", "NaN", "Infinity", "-Infinity", "0.0", "",
    ]  # fmt: skip


def test_without_names_all_series_come(site: Site) -> None:
    assert set(site.get("/five/series")["series"]) == {"loss", "grad_norm"}


def test_a_run_without_rows_is_an_empty_answer(site: Site) -> None:
    answer = site.get("/silent/series", names="loss")
    assert (answer["series"], answer["from"], answer["to"], answer["sessions"]) == ({}, None, None, [])


def test_the_live_cursor_is_in_the_answer(site: Site) -> None:
    assert isinstance(site.get("/five/series")["cursor"], int)


@pytest.mark.parametrize("path", ["", "/series", "/incidents", "/events", "/export.csv", "/export.jsonl"])
def test_an_unknown_run_is_404_in_the_one_shape(site: Site, path: str) -> None:
    response = site.response(f"/nobody{path}")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"


@pytest.mark.parametrize(
    "query",
    [
        {"pixels": 1},
        {"pixels": "many"},
        {"from": "nan"},
        {"rank": -1},
        {"rank": 2**63},
        {"names": ",".join("abcdefgh" * 9)},
    ],
)
def test_a_question_that_makes_no_sense_is_400(site: Site, query: dict[str, str | float]) -> None:
    response = site.response("/five/series", **query)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "bad_request"


def test_a_page_beyond_every_board_is_400(site: Site) -> None:
    assert site.response("", offset=2**63).status_code == 400


def test_the_board_has_every_run_with_its_curve_and_counts(site: Site) -> None:
    runs = {run["run_id"]: run for run in site.get("")["runs"]}
    assert runs.keys() == {"five", "long", "resumed", "silent", "judged"}
    spark = runs["long"]["sparkline"]
    assert len(cells(spark["step"])) <= 60
    assert sum(map(float, cells(spark["n_nan"]))) == 1
    assert cells(runs["five"]["sparkline"]["value"]) == [*SPELLED, "2.0"]
    assert runs["silent"]["sparkline"] is None
    assert runs["judged"]["incidents"] == {"open": 1, "critical": 1, "warning": 1, "info": 0}
    assert runs["judged"]["worst_incident"]["id"] == "i1"
    assert runs["judged"]["open_incidents"] == 1


def test_runs_are_found_by_what_they_are_called(site: Site) -> None:
    assert site.ids(q="OICE") == []
    assert site.ids(q="ResuM") == ["resumed"]
    assert site.ids(q="%") == ["judged"]
    assert site.ids(tag="a_b") == ["judged"]
    assert site.ids(tag="a%") == []
    assert site.ids(project="100%") == ["judged"]
    assert site.ids(state="finished") == ["five"]


def test_the_board_comes_in_pages(site: Site) -> None:
    pages = [site.get("", limit=2, offset=offset) for offset in (0, 2, 4)]
    found = [run["run_id"] for page in pages for run in page["runs"]]
    assert sorted(found) == ["five", "judged", "long", "resumed", "silent"]
    assert {page["total"] for page in pages} == {5}


def test_one_run_tells_what_it_is_made_of(site: Site) -> None:
    run = site.get("/resumed")
    assert [layer["name"] for layer in run["layers"]] == ["a", 'b,"c']
    assert [session["session_id"] for session in run["sessions"]] == ["old", "new"]
    assert (run["series"], run["layer_series"]) == (["loss"], ["layer_grad_norm"])
    assert run["environment"]["dtype_policy"] == "float32"
    assert run["gaps"] == []
    assert cells(run["sparkline"]["value"]) == ["1.0", "1.0", "2.0", "2.0"]


def test_incidents_come_in_order_of_detection_with_every_field(site: Site) -> None:
    incidents = site.get("/judged/incidents")["incidents"]
    assert [found["id"] for found in incidents] == ["i0", "i1", "i2"]
    assert incidents[1]["causes"][0]["for"] == ["a reason"]
    assert incidents[1]["evidence"][0]["value"] == "Infinity"
    assert incidents[1].keys() >= {
        "id", "kind", "severity", "state", "onset_step", "detected_step", "nonfinite_step", "lead_steps",
        "layer", "rank", "verdict", "why", "next", "weights", "causes", "evidence",
        "first_bad_operation", "findings",
    }  # fmt: skip


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_the_csv_is_raw_and_a_missing_value_is_an_empty_cell(site: Site) -> None:
    response = site.response("/five/export.csv")
    assert response.headers["content-type"] == "text/csv; charset=utf-8"
    rows = table(response.text)
    assert [row["loss"] for row in rows] == [*SPELLED, "2.0"]
    assert [row["step"] for row in rows] == ["10", "11", "12", "13", "14", "20"]
    assert [row["grad_norm"] for row in rows] == ["1.0", "2.0", "3.0", "4.0", "5.0", ""]
    assert rows[0]["time"] == repr(NOW + 10)


def test_the_jsonl_is_raw_and_a_missing_value_has_no_key(site: Site) -> None:
    lines = site.response("/five/export.jsonl").text.splitlines()
    rows = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert [row.get("loss", "") for row in rows] == [0.1, "NaN", "Infinity", "-Infinity", "", 2.0]
    assert rows[4] == {"step": 14, "time": NOW + 14, "grad_norm": 5.0}


def test_an_export_has_every_row_of_a_long_run_to_the_last_bit(site: Site) -> None:
    rows = {int(row["step"]): row["loss"] for row in table(site.response("/long/export.csv").text)}
    model = main_line([site.recorded["long"]], "loss")
    assert rows == {step: codec.spell_number(cell or 0.0) for step, cell in model.items()}


def test_an_export_follows_the_main_line_and_quotes_names(site: Site) -> None:
    rows = table(site.response("/resumed/export.csv", names="loss,layer_grad_norm").text)
    assert [row["loss"] for row in rows] == ["1.0", "1.0", "2.0", "2.0"]
    assert [row["layer_grad_norm/a"] for row in rows] == ["1.0", "3.0", "", ""]
    assert [row['layer_grad_norm/b,"c'] for row in rows] == ["2.0", "", "", ""]


def test_rows_that_just_came_in_are_read_at_once(site: Site) -> None:
    body = packet([hello("fresh"), steps(1, 0, [1.0, math.nan])])
    assert httpx.post(site.server.url + "/api/v1/ingest", content=body).status_code == 200
    assert cells(site.get("/fresh/series", names="loss")["series"]["loss"]["value"]) == ["1.0", "NaN"]
    httpx.delete(site.server.url + "/api/v1/runs/fresh")
