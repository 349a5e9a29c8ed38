"""Rows of jobs: they come back as they were, and their number is bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.store.state.identity import FAMILIES
from quarry_mq.store.state.jobs import ENDED_KEPT, FIRST_ERRORS_MAX, TEXT_MAX, Job, JobState, JobTable

TEXTS = st.text(max_size=20)
NUMBERS = st.integers(0, 2**62)
JOBS = st.builds(
    Job,
    id=NUMBERS,
    kind=TEXTS,
    asked_by=TEXTS,
    asked=st.dictionaries(TEXTS, NUMBERS | TEXTS | st.none() | st.lists(NUMBERS, max_size=3), max_size=3),
    is_dry_run=st.booleans(),
    state=st.sampled_from(JobState),
    done=NUMBERS,
    total=st.none() | NUMBERS,
    counts=st.dictionaries(TEXTS, NUMBERS, max_size=3),
    first_errors=st.lists(TEXTS, max_size=3).map(tuple),
    cursor=st.dictionaries(TEXTS, NUMBERS | TEXTS, max_size=3),
    remark=st.none() | TEXTS,
    ended_at_ms=st.none() | NUMBERS,
)


class Bench:
    def __init__(self) -> None:
        self.engine = MemoryEngine(FAMILIES, write_ahead_log=True)
        self.table = JobTable(self.engine)

    def save(self, job: Job) -> None:
        batch = self.engine.batch()
        self.table.stage(batch, job)
        self.engine.write(batch)


@given(st.lists(JOBS, max_size=8, unique_by=lambda job: job.id))
def test_jobs_come_back_as_they_were_the_newest_first(jobs: list[Job]) -> None:
    bench = Bench()
    for job in jobs:
        bench.save(job)
    assert bench.table.all() == sorted(jobs, key=lambda job: job.id, reverse=True)


def test_the_newest_ended_ones_stay_and_all_that_have_not_ended() -> None:
    bench = Bench()
    first = Job(id=0, kind="k", asked_by="b", asked={}, state=JobState.RUNNING)
    bench.save(first)
    for number in range(1, ENDED_KEPT + 6):
        bench.save(Job(id=number, kind="k", asked_by="b", asked={}, state=JobState.DONE))
    kept = [job.id for job in bench.table.all()]
    assert kept == [*range(ENDED_KEPT + 5, 5, -1), 0]
    bench.save(first.ended(JobState.CANCELLED, 7))
    assert [job.id for job in bench.table.all()] == [*range(ENDED_KEPT + 5, 6, -1), 0]


def test_the_first_errors_are_kept_and_each_is_cut() -> None:
    job = Job(id=1, kind="k", asked_by="b", asked={})
    for number in range(FIRST_ERRORS_MAX + 5):
        job = job.further(1, {"at": number}, {"refused": 1}, (f"{number} " + "x" * TEXT_MAX,))
    assert (job.done, job.cursor) == (FIRST_ERRORS_MAX + 5, {"at": FIRST_ERRORS_MAX + 4})
    assert job.counts == {"refused": FIRST_ERRORS_MAX + 5}
    assert [text.split()[0] for text in job.first_errors] == [str(number) for number in range(FIRST_ERRORS_MAX)]
    assert {len(text) for text in job.first_errors} == {TEXT_MAX}
