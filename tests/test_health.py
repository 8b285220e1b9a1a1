"""Is all well? Each thing that may be wrong is a sentence, and nothing else is one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from django_durable import inspection, job
from django_durable.inspection import health, problems
from django_durable.models import Job, Queue, Schedule
from tests.by_hand import Hand, beat, silence

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


@job(name="healthy.encode", queue_name="video", requires="gpu")
def encode() -> None:
    """Need a capability."""


@job(name="healthy.send", queue_name="mail")
def send() -> None:
    """Need nothing."""


@job(name="healthy.keyed", queue_name="mail", concurrency_key=lambda tenant: tenant)
def keyed(tenant: str) -> None:
    """Run alone for its tenant."""


NAMES = [encode.name, send.name, keyed.name]


@pytest.fixture(autouse=True)
def worker(db: None) -> Any:
    """A worker that serves all but what needs a capability."""
    return beat(*NAMES)


def dead(number: int = 1) -> None:
    by = Hand(send.name)
    for _ in range(number):
        send.enqueue()
        by.kill(by.take(), ValueError("no"))


def test_all_is_well_with_one_worker_that_serves_everything() -> None:
    send.enqueue()
    keyed.enqueue("ada")
    dead()
    assert problems() == []


class TestWorkers:
    def test_none_is_too_few(self, worker: Any) -> None:
        silence(worker, HOUR)
        assert problems() == ["no worker runs where 1 is wanted"]
        assert problems(min_workers=0) == []

    def test_draining_ones_do_not_count(self) -> None:
        beat(*NAMES, draining=True)
        assert problems(min_workers=2) == [
            "only 1 worker runs, beside 1 that drains, where 2 are wanted"
        ]
        beat(*NAMES)
        assert problems(min_workers=2) == []
        assert problems(min_workers=3)[0].startswith("only 2 workers run, beside 1")


class TestJobsThatNobodyWillRun:
    def test_a_capability_that_no_worker_has(self) -> None:
        for _ in range(12):
            encode.enqueue()
        (sentence,) = problems()
        assert sentence == (
            "12 jobs of healthy.encode in queue 'video' will not start, since no live worker serves"
            " them: nobody who serves its queue and job type has capability 'gpu'"
        )
        beat(*NAMES, capabilities=["gpu"])
        assert problems() == []

    def test_a_queue_and_a_job_type(self) -> None:
        beat(*NAMES)
        job = send.using(queue_name="else").enqueue()
        Job.objects.filter(pk=job.pk).update(name="healthy.gone")
        assert problems()[0].startswith(
            "1 job of healthy.gone in queue 'else' will not start, since no live worker serves it:"
        )
        assert problems()[0].endswith("nobody knows the job type 'healthy.gone'")

    def test_keyed_jobs_are_seen_at_each_priority(self) -> None:
        beat("other")
        keyed.using(queue_name="else", priority=5).enqueue("ada")
        for tenant in "abc":
            keyed.using(requires="tpu").enqueue(tenant)
        (sentence,) = problems()
        assert sentence.startswith("3 jobs of healthy.keyed in queue 'mail'")
        assert sentence.endswith("capability 'tpu'")

    def test_what_is_not_due_yet_is_no_problem(self) -> None:
        encode.using(run_after=HOUR).enqueue()
        assert problems() == []

    def test_without_workers_only_that_is_said(self, worker: Any) -> None:
        encode.enqueue()
        silence(worker, HOUR)
        assert len(problems()) == 1

    def test_a_long_line_is_counted_up_to_a_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(health, "REACH", 5)
        encode.enqueue_many([((), {})] * 7)
        assert problems()[0].startswith("5 jobs or more of healthy.encode")

    def test_many_kinds_are_told_in_part(self) -> None:
        for number in range(25):
            encode.using(queue_name=f"q{number:02}").enqueue()
        found = problems()
        assert len(found) == 21
        assert found[-1] == "and 5 more of this kind"


class TestQueues:
    def test_a_paused_queue_with_jobs_in_it(self) -> None:
        Queue.objects.pause("mail")
        assert problems() == []
        send.using(run_after=HOUR).enqueue()
        assert problems() == []
        send.enqueue()
        keyed.enqueue("ada")
        assert problems() == ["queue 'mail' is paused, and 2 jobs could start otherwise"]

    def test_a_queue_whose_limit_lets_nothing_start(self) -> None:
        Queue.objects.create(name="mail", max_running=0)
        send.enqueue()
        assert problems() == [
            "queue 'mail' has a maximum of no running job, and 1 job could start otherwise"
        ]


class TestSchedulesThatNobodyFires:
    def test_one_that_is_overdue(self) -> None:
        send.schedule("late", every=HOUR)
        send.schedule("off", every=HOUR, enabled=False)
        moments = {65: False, 66: True}
        for seconds, told in moments.items():
            past = timezone.now() - timedelta(seconds=seconds)
            Schedule.objects.update(next_run_at=past + timedelta(milliseconds=500))
            assert bool(problems()) == told
        assert problems() == [
            "schedule 'late' of healthy.send should have run more than 1 m 5 s ago"
        ]

    def test_one_without_a_next_run_unless_it_has_ended(self, worker: Any) -> None:
        send.schedule("lost", cron="@hourly")
        send.schedule("ended", cron="@yearly", until=timezone.now())
        send.schedule("ends", cron="@yearly", until=timezone.now() + timedelta(seconds=20))
        Schedule.objects.filter(name="lost").update(next_run_at=None)
        assert problems() == ["schedule 'lost' of healthy.send has no next run"]
        silence(worker, HOUR)
        assert problems(min_workers=0) == []


class TestAge:
    def old(self, call: Any, *args: Any) -> None:
        made = call.enqueue(*args)
        Job.objects.filter(pk=made.pk).update(due_at=made.due_at - HOUR)

    def test_the_oldest_job_of_a_queue_is_told(self) -> None:
        self.old(send)
        self.old(keyed, "ada")
        send.enqueue()
        assert problems(max_age=2 * HOUR) == problems() == []
        (sentence,) = problems(max_age=timedelta(minutes=5))
        assert sentence.startswith("the oldest job of queue 'mail', a healthy.")
        assert sentence.endswith("could have started 1 h ago, which is more than 5 m")

    def test_a_paused_queue_is_told_as_such_alone(self) -> None:
        self.old(send)
        Queue.objects.pause("mail")
        assert problems(max_age=timedelta(minutes=5)) == [
            "queue 'mail' is paused, and 1 job could start otherwise"
        ]


class TestDeadLetters:
    def test_more_than_may_be_are_counted(self) -> None:
        dead(3)
        assert problems(max_dead=3) == []
        assert problems(max_dead=2) == ["3 dead letters have not been replayed: more than 2"]
        Job.objects.dead()[0].dead_letter.replay()
        assert problems(max_dead=2) == []
        Job.objects.dead()[1].dead_letter.replay()
        assert problems(max_dead=0) == ["1 dead letter has not been replayed: more than 0"]

    def test_only_so_many_are_looked_at(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(health, "NEWEST_LETTERS", 1)
        dead(5)
        assert problems(max_dead=2) == [
            "3 dead letters or more have not been replayed: more than 2"
        ]


def test_a_broken_schedule_is_told_while_it_is_on() -> None:
    row = send.schedule("nightly", cron="@daily")
    Schedule.objects.update(broken="no live worker knows it")
    assert problems() == ["schedule 'nightly' of healthy.send cannot fire: no live worker knows it"]
    row.disable()
    assert problems() == []


def test_missing_migrations_are_told_alone() -> None:
    encode.enqueue()
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM django_migrations WHERE name ="
            " (SELECT max(name) FROM django_migrations WHERE app = 'durable')"
        )
    assert problems() == ["1 migration of durable is missing: run `manage.py migrate`"]
    assert inspection.missing_migrations(connection) == 1


def test_it_costs_the_same_queries_whatever_there_is(django_assert_num_queries: Any) -> None:
    def make(number: int) -> None:
        for each in range(number):
            send.using(queue_name=f"q{each}").enqueue()
            encode.enqueue()
            Queue.objects.pause(f"q{each}")

    flags: dict[str, Any] = {"max_age": HOUR, "max_dead": 1}
    for number in (1, 30):
        make(number)
        with django_assert_num_queries(9):
            problems(**flags)


class TestCommand:
    def run(self, *args: str) -> dict[str, Any]:
        out = StringIO()
        call_command("durable", "health", *args, "--json", stdout=out)
        document: dict[str, Any] = json.loads(out.getvalue())
        return document

    def test_all_is_well(self) -> None:
        assert self.run() == {"healthy": True, "problems": []}
        out = StringIO()
        call_command("durable", "health", stdout=out, no_color=True)
        assert out.getvalue() == "All is well.\n"

    def test_what_is_wrong_is_in_the_document_and_on_stderr_with_exit_code_1(self) -> None:
        encode.enqueue()
        dead(2)
        out = StringIO()
        args = ["--max-dead", "1", "--min-workers", "2", "--max-age", "1h"]
        with pytest.raises(CommandError) as caught:
            call_command("durable", "health", *args, "--json", stdout=out)
        document = json.loads(out.getvalue())
        assert (caught.value.returncode, document["healthy"]) == (1, False)
        assert document["problems"] == str(caught.value).split("\n") != []
        assert len(document["problems"]) == 3

    @pytest.mark.parametrize("flags", [["--max-dead", "-1"], ["--max-age", "soon"]])
    def test_wrong_usage_is_refused(self, flags: list[str]) -> None:
        with pytest.raises(CommandError, match="argument --max"):
            self.run(*flags)

    def test_a_database_that_is_away_is_a_problem_too(self) -> None:
        done = subprocess.run(
            [sys.executable, "manage.py", "durable", "health", "--json"],
            cwd=Path(__file__).parent.parent,
            env={**os.environ, "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1
        document = json.loads(done.stdout)
        assert not document["healthy"]
        (sentence,) = document["problems"]
        assert sentence.startswith("the database does not answer: ")
        assert done.stderr == f"CommandError: {sentence}\n"
