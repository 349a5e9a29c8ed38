"""The supervisor starts, restarts and stops the processes of shards, whatever they run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM

from quarry_mq.server.shards.supervisor import Backoff
from tests.e2e.broker import PROJECT, until
from tests.shards.conftest import RunPrograms
from tests.shards.running import Supervisor, arguments_of, is_running

RUN = "while :; do sleep 0.1; done"
READY = "echo 'Quarry is ready.'"


def test_the_supervisor_loads_nothing_of_a_broker() -> None:
    """It stays for as long as the brokers do."""
    names = "import json, sys; import quarry_mq.server.shards.__main__; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", names], cwd=PROJECT, capture_output=True, check=True, timeout=60)
    loaded = set(json.loads(done.stdout))
    assert not loaded & {
        "pydantic",
        "typer",
        "grpc",
        "numpy",
        "rocksdict",
        "quarry_mq.server.settings.broker_settings",
        "quarry_mq.server.broker",
    }


def test_lines_pass_with_the_name_of_their_shard(run_programs: RunPrograms) -> None:
    supervisor = run_programs(f"echo one; echo; echo two >&2; printf three; exec {sys.executable} -c pass", RUN)
    supervisor.until_said("shard-0 | three")
    assert supervisor.output[:3] == ["shard-0 | one", "shard-0 | ", "shard-0 | three"]
    assert "shard-0 | two" in supervisor.errors


def test_when_all_have_come_up_it_is_said_once_where_they_are(run_programs: RunPrograms) -> None:
    supervisor = run_programs(f"{READY}; echo more; {RUN}", f"{READY}; echo more; sleep 0.3; exit 1")
    supervisor.until_said("2 shards are ready.")
    supervisor.until_said("shard-1 | Quarry is ready.", times=2)
    text = supervisor.output
    assert text.count("2 shards are ready.") == 1
    first, second = (line.split() for line in text if line.startswith("  shard-"))
    places = ("network_listen", "network_admin", "network_http", "network_console", "store_directory")
    assert first == ["shard-0", *(f"{each}-0" for each in places)]
    assert second[0] == "shard-1"
    assert "  clients need one of the messaging addresses" in text


def test_what_dies_is_started_again_after_growing_pauses(run_programs: RunPrograms) -> None:
    supervisor = run_programs("exit 1", "kill -9 $$", RUN, f"{READY}; exit 2")
    name = "a shard has ended, it is started again"
    until(lambda: len(supervisor.events(name)) >= 6, name)
    told = {
        (event["shard"], event["status"], event.get("signal"), event["pause_s"]) for event in supervisor.events(name)
    }
    assert told == {
        (shard, status, signal, pause_s)
        for shard, status, signal in (("shard-0", 1, None), ("shard-1", 137, "SIGKILL"), ("shard-3", 2, None))
        for pause_s in (0.5, 1.0)
    }


def test_a_shard_that_cannot_start_ends_all_of_them(run_programs: RunPrograms) -> None:
    supervisor = run_programs(f"{READY}; {RUN}", "sleep 0.5; echo log >&2; echo 'listen: it is taken' >&2; exit 2")
    assert supervisor.ended() == 2
    assert supervisor.errors[-1] == "shard-1 could not start: listen: it is taken"
    assert not is_running(supervisor.process_of("shard-0"))


def test_a_signal_is_passed_on_and_so_is_a_second_one(run_programs: RunPrograms) -> None:
    patient = f"n=0; trap 'n=$((n+1)); echo told $n; [ $n = 1 ] || exit 0' TERM; {READY}; {RUN}"
    supervisor = run_programs(patient, f"{READY}; {RUN}")
    supervisor.until_said("2 shards are ready.")
    supervisor.tell(SIGTERM)
    supervisor.until_said("shard-0 | told 1")
    supervisor.tell(SIGINT)
    assert supervisor.ended() == 0
    assert "shard-0 | told 2" in supervisor.output
    assert [event["by"] for event in supervisor.events("stopping all shards")] == ["SIGTERM", "SIGINT"]


def test_the_worst_status_is_the_supervisors(run_programs: RunPrograms) -> None:
    supervisor = run_programs(*(f"trap 'exit {status}' TERM; {READY}; {RUN}" for status in (0, 3, 1)))
    supervisor.until_said("3 shards are ready.")
    supervisor.tell(SIGTERM)
    assert supervisor.ended() == 3


def test_a_shard_that_is_told_before_it_can_hear_has_stopped_well(run_programs: RunPrograms) -> None:
    supervisor = run_programs(f"echo there; {RUN}")
    supervisor.until_said("shard-0 | there")
    supervisor.tell(SIGTERM)
    assert supervisor.ended() == 0


def test_a_stop_does_not_wait_for_a_shard_that_waits_itself(run_programs: RunPrograms) -> None:
    supervisor = run_programs("exit 1")
    said = "a shard has ended, it is started again"
    until(lambda: [event["pause_s"] for event in supervisor.events(said)][2:] == [2.0], "a pause of two seconds")
    supervisor.tell(SIGTERM)
    assert supervisor.ended() == 1


def test_shards_are_told_when_the_supervisor_is_killed(run_programs: RunPrograms, tmp_path: Path) -> None:
    supervisor = run_programs(f"trap 'touch {tmp_path}/told; exit 0' TERM; echo there; {RUN}")
    supervisor.until_said("shard-0 | there")
    child = supervisor.process_of("shard-0")
    supervisor.tell(SIGKILL)
    until(lambda: not is_running(child), "the end of the shard")
    assert (tmp_path / "told").exists()


def test_a_reader_of_the_output_that_is_gone_stops_nothing(tmp_path: Path) -> None:
    starts, turns = tmp_path / "starts", tmp_path / "turns"
    turns.touch()
    turn = f"echo line; echo line >&2; echo turn >> {turns}; sleep 0.05"
    script = f"echo start >> {starts}; trap 'exit 0' TERM; while :; do {turn}; done"
    reader, writer = os.pipe()
    supervisor = Supervisor(arguments_of(script), tmp_path, output=writer)
    os.close(writer)
    try:
        os.read(reader, 1)
        os.close(reader)
        before = turns.stat().st_size
        until(lambda: turns.stat().st_size > before + 20, "the shard goes on")
        supervisor.tell(SIGTERM)
        supervisor.ended()
    finally:
        supervisor.close()
    assert starts.read_text() == "start\n"


def test_pauses_double_up_to_half_a_minute_and_begin_again_after_a_minute_up() -> None:
    backoff = Backoff()
    assert [backoff.pause_s(ran_s=1) for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert backoff.pause_s(ran_s=59.9) == 30
    assert backoff.pause_s(ran_s=60) == 0.5
    assert backoff.pause_s(ran_s=0) == 1
