import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.record import Outcome, Record
from headway.core.slo import Slo
from headway.errors import RecordError
from headway.results import RecordWriter, read_records
from headway.results.records import KEYS, OPTIONAL_KEYS, decode_record, encode_record, write_records

from .examples import make, runs, worked_run

FULL_DISK = Path("/dev/full")
GOOD = encode_record(make()) + b"\n"


def write(path: Path, records: list[Record]) -> Path:
    with RecordWriter(path) as writer:
        for record in records:
            writer.append(record)
    return path


def changed(**values: object) -> bytes:
    return json.dumps({**json.loads(GOOD), **values}).encode() + b"\n"


def without(key: str) -> bytes:
    return json.dumps({k: v for k, v in json.loads(GOOD).items() if k != key}).encode() + b"\n"


LINE = (
    '{"id":"a","tenant":"","arrival_s":0.0,"first_scheduled_s":1.0,"first_token_s":2.0,"finished_s":6.0,'
    '"prompt_tokens":10,"output_tokens":5,"predicted_output_tokens":null,'
    '"slo":{"ttft_s":2,"tbt_s":null,"deadline_s":null},"outcome":"finished","instance":"",'
    '"preemptions":0,"swapped_blocks":0,"recomputed_tokens":0}'
)


def test_a_line_is_written_as_the_design_has_it() -> None:
    assert encode_record(make(slo=Slo(ttft_s=2))).decode() == LINE
    both = json.loads(encode_record(make(token_times_s=[2.0, 6.0], error="slow")))
    assert both["token_times_s"] == [2.0, 6.0]
    assert list(both)[-1] == "error"


def test_times_are_rounded_to_microseconds_and_nothing_else_is() -> None:
    record = make(
        arrival_s=0.12345649,
        first_scheduled_s=1.12345651,
        token_times_s=[2.00000049],
        predicted_output_tokens=1 / 3,
        slo=Slo(ttft_s=1e-7),
    )
    line = json.loads(encode_record(record))
    assert (line["arrival_s"], line["first_scheduled_s"]) == (0.123456, 1.123457)
    assert line["token_times_s"] == [2.0]
    assert line["predicted_output_tokens"] == 1 / 3
    assert line["slo"]["ttft_s"] == 1e-7


@settings(deadline=None)  # writes files
@given(records=runs(min_size=1))
def test_what_is_written_is_read_back(
    records: list[Record], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("records") / "vllm.records.jsonl"
    assert read_records(write(path, records)) == records


def test_each_record_is_on_disk_before_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folders" / "a.records.jsonl"
    with RecordWriter(path) as writer:
        for count, record in enumerate(worked_run(), start=1):
            writer.append(record)
            assert len(read_records(path)) == count


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "r.jsonl"
    write_records(path, worked_run())
    assert path.read_bytes() == write(tmp_path / "one by one", worked_run()).read_bytes()
    with pytest.raises(RecordError, match=r"cannot be written \(Is a directory\)"):
        write_records(tmp_path, worked_run())


def test_an_old_file_is_replaced(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", worked_run())
    assert [record.id for record in read_records(write(path, [make("new")]))] == ["new"]


def test_records_survive_an_error_in_the_run(tmp_path: Path) -> None:
    def run() -> None:
        with RecordWriter(tmp_path / "r.jsonl") as writer:
            writer.append(make())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert read_records(tmp_path / "r.jsonl") == [make()]


def test_a_half_written_last_line_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "r.jsonl"
    for cut in range(1, len(GOOD) - 1):
        path.write_bytes(GOOD + GOOD[:cut])
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert read_records(path) == [make()]
        assert caplog.messages == [f"{path}: 1 half-written line left out (line 2)"]


def test_a_last_line_that_lacks_only_its_newline_counts(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(GOOD + b"\n" + GOOD[:-1])
    assert len(read_records(path)) == 2


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{\n", "not a record"),
        (b"[1, 2]\n", "not a record"),
        (b"\xff\xfe\n", "not a record"),
        (changed(outcome="vanished"), "Invalid enum value 'vanished'"),
        (changed(outcome=None), r"\$.outcome"),
        (changed(prompt_tokens="10"), r"\$.prompt_tokens"),
        (changed(prompt_tokens=-1), "prompt_tokens is -1; accepted: 0 or more"),
        (changed(preemptions=-2), "preemptions is -2"),
        (changed(first_token_s=0.5), "times go back"),
        (changed(finished_s=None), "finished_s is null"),
        (changed(slo={"ttft_s": -1}), "ttft_s is -1"),
        (changed(slo={"ttft_ms": 500}), "unknown key 'ttft_ms'; accepted: ttft_s, tbt_s, deadline_s"),
        (changed(slo=None), r"\$.slo"),
        (changed(tokens=3), "unknown key 'tokens'"),
        (without("arrival_s"), "missing arrival_s"),
        (without("output_tokens"), "missing output_tokens"),
    ],
)
def test_a_broken_line_is_named_with_file_and_number(tmp_path: Path, line: bytes, says: str) -> None:
    path = tmp_path / "vllm.records.jsonl"
    path.write_bytes(GOOD + line + GOOD)
    with pytest.raises(RecordError, match=says) as caught:
        read_records(path)
    assert str(caught.value).startswith(f"{path}, line 2: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", [key for key in KEYS if key not in OPTIONAL_KEYS])
def test_every_key_but_the_optional_ones_is_required(key: str) -> None:
    with pytest.raises(RecordError, match=f"missing {key}$"):
        decode_record(without(key))


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (lambda path: None, "No such file"),
        (lambda path: path.mkdir(), "Is a directory"),
        (lambda path: path.write_bytes(b""), "no records"),
        (lambda path: path.write_bytes(b"\n \n"), "no records"),
        (lambda path: path.write_bytes(GOOD[:20]), "no records"),
    ],
)
def test_a_file_without_records_is_an_error(
    tmp_path: Path, prepare: Callable[[Path], object], says: str
) -> None:
    path = tmp_path / "r.jsonl"
    prepare(path)
    with pytest.raises(RecordError, match=says):
        read_records(path)


def test_a_writer_that_cannot_open_its_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot be written"):
        RecordWriter(tmp_path)


@pytest.mark.skipif(not FULL_DISK.exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_a_record_error_when_written_and_when_closed() -> None:
    writer = RecordWriter(FULL_DISK)
    says = r"^/dev/full: cannot be written \(No space left on device\); accepted: "
    with pytest.raises(RecordError, match=says):
        writer.append(make())
    with pytest.raises(RecordError, match=says):
        writer.close()
    writer.close()


@given(line=st.binary(max_size=40))
def test_arbitrary_bytes_are_a_record_error_and_nothing_else(line: bytes) -> None:
    with pytest.raises(RecordError):
        decode_record(line)


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.FINISHED])
def test_only_a_finished_request_needs_an_end(outcome: Outcome) -> None:
    record = make(outcome=outcome, finished_s=None)
    assert decode_record(encode_record(record)) == record
