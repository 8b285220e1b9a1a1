"""`manage.py durable`, in this process and in one of its own."""

import json
import os
import re
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from io import StringIO
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import pytest
from django.core.management import CommandError, call_command
from django.core.management.base import CommandParser
from django.core.management.color import no_style
from django.db import connection
from django.utils import timezone as django_timezone

from django_durable import Backoff, job, workflow
from django_durable.exceptions import AlreadyReplayed
from django_durable.jobtypes import registry
from django_durable.management.subcommands import SUBCOMMANDS
from django_durable.management.subcommands.output import plain, printable
from django_durable.models import DeadLetter, Job, Queue
from tests.by_hand import Hand, bear, beat, silence

HOUR = timedelta(hours=1)
MANAGE = Path(__file__).parent.parent / "manage.py"

pytestmark = pytest.mark.django_db


class RefusedError(Exception):
    """Be an error of the project."""


class Size(IntEnum):
    SMALL = 1


@job(name="commanded.send", queue_name="commanded")
def send(order=0, *, copy=False):
    """Do nothing."""


@job(name="commanded.post", queue_name="letters")
def post(value=None):
    """Take any value."""


@workflow(name="commanded.flow", queue_name="commanded")
def flow(context):
    """Have children."""


@pytest.fixture
def hand():
    return Hand(send.name, post.name, flow.name)


def durable(*args, **options):
    """Run a subcommand and return its JSON document."""
    out, err = StringIO(), StringIO()
    call_command("durable", *args, "--json", stdout=out, stderr=err, **options)
    document = json.loads(out.getvalue())
    assert out.getvalue().isascii()
    assert not err.getvalue()
    return document


def text(*args):
    """Run a subcommand and return what a person sees."""
    out = StringIO()
    call_command("durable", *args, stdout=out, no_color=True)
    return out.getvalue()


def refused(*args):
    """Run a subcommand that fails; return its document, its sentence and its exit code."""
    out = StringIO()
    with pytest.raises(CommandError) as caught:
        call_command("durable", *args, "--json", stdout=out)
    document = json.loads(out.getvalue()) if out.getvalue() else None
    return document, str(caught.value), caught.value.returncode


def ids(document):
    return [row["id"] for row in document]


def dead(hand, error, call=send):
    job = call.enqueue()
    hand.kill(hand.take(), error)
    return Job.objects.get(pk=job.pk)


class TestStatus:
    def test_it_counts_jobs_queues_workers_and_slots(self, hand):
        beat(send.name, name="one", slots=4)
        silence(beat(send.name, name="two", slots=8), HOUR)
        Queue.objects.create(name="letters", paused=True)
        send.enqueue()
        send.enqueue()
        post.enqueue()
        hand.scope = type(hand.scope)(frozenset([send.name]))
        hand.take()
        document = durable("status")
        assert document["jobs"] == {
            "READY": 2,
            "RUNNING": 1,
            "WAITING": 0,
            "SUCCESSFUL": 0,
            "DEAD": 0,
            "CANCELLED": 0,
        }
        queues = {queue["name"]: queue for queue in document["queues"]}
        assert queues["commanded"]["ready"] == queues["commanded"]["running"] == 1
        assert queues["commanded"]["paused"] is False
        assert 0 <= queues["commanded"]["oldest_ready_seconds"] < 100
        assert queues["letters"]["paused"] is True
        assert [(w["name"], w["alive"]) for w in document["workers"]] == [
            ("one", True),
            ("two", False),
        ]
        assert document["slots"] == {"used": 1, "total": 4}

    def test_a_person_sees_tables(self):
        beat(send.name, name="one", slots=4)
        send.enqueue()
        shown = text("status")
        assert re.search(r"^READY +1$", shown, re.MULTILINE)
        assert re.search(r"^commanded +1 +1 +0 +\S+ m?s$", shown, re.MULTILINE)
        assert "Workers, 0 of 4 slots used" in shown
        assert "\x1b" not in shown

    def test_an_empty_system_has_a_status_too(self):
        document = durable("status")
        assert set(document["jobs"].values()) == {0}
        assert document["workers"] == []
        assert document["slots"] == {"used": 0, "total": 0}
        assert "No worker runs" in text("status")


class TestWorkers:
    def test_the_living_come_first_and_the_dead_are_shown_as_dead(self):
        silence(beat(send.name, name="a-dead-one"), HOUR)
        worker = beat(send.name, name="z", queues=["mail"], capabilities=["gpu"], draining=True)
        first, second = durable("workers")
        assert first == {
            "name": "z",
            "incarnation": str(worker.incarnation),
            "hostname": "host.example",
            "pid": 4711,
            "started_at": worker.started_at.isoformat(),
            "heartbeat_at": worker.heartbeat_at.isoformat(),
            "queues": ["mail"],
            "excluded_queues": [],
            "job_names": [send.name],
            "capabilities": ["gpu"],
            "slots": 10,
            "running": 0,
            "draining": True,
            "alive": True,
            "state": "draining",
        }
        assert (second["name"], second["alive"], second["state"]) == ("a-dead-one", False, "dead")
        assert re.search(r"^a-dead-one +dead +0 +10 +all ", text("workers"), re.MULTILINE)


class TestJobs:
    def test_the_newest_come_first_with_what_holds_them(self, hand):
        ended = dead(hand, RefusedError("no\nmoney"))
        waiting = send.enqueue()
        first, second = durable("jobs")
        assert first == {
            "id": str(waiting.pk),
            "name": "commanded.send",
            "queue_name": "commanded",
            "status": "READY",
            "attempt": 0,
            "enqueued_at": waiting.enqueued_at.isoformat(),
            "run_after": waiting.run_after.isoformat(),
            "finished_at": None,
            "blocked_on": "no live worker serves it: none is running",
            "error_class": None,
            "message": None,
        }
        assert second["id"] == str(ended.pk)
        assert second["finished_at"] == ended.finished_at.isoformat()
        assert second["blocked_on"] == ""
        assert second["error_class"] == "tests.test_command_durable.RefusedError"
        assert second["message"] == "no\nmoney"
        shown = text("jobs")
        assert "RefusedError: no money" in shown
        assert len(shown.splitlines()) == 3

    def test_an_empty_list_is_a_list(self):
        assert durable("jobs") == []
        assert text("jobs") == "No such job.\n"

    def test_what_retention_has_given_up_is_gone(self, hand):
        ended = dead(hand, RefusedError())
        Job.all_objects.filter(pk=ended.pk).update(kept_until=django_timezone.now())
        assert durable("jobs") == []
        assert refused("show", str(ended.pk))[1:] == (f"no job has the id {ended.pk}", 1)

    def test_a_longer_list_is_cut_and_says_so(self):
        jobs = [send.enqueue() for _ in range(3)]
        out, err = StringIO(), StringIO()
        call_command("durable", "jobs", "--json", "--limit=2", stdout=out, stderr=err)
        assert ids(json.loads(out.getvalue())) == [str(jobs[2].pk), str(jobs[1].pk)]
        assert "There are more than these 2" in err.getvalue()

    def test_a_page_costs_the_same_for_few_and_many(self, django_assert_num_queries):
        beat(send.name)
        for number in (1, 30):
            for _ in range(number):
                send.enqueue()
            # The page, and of what may block it: the rows anew, queues and workers.
            with django_assert_num_queries(4):
                durable("jobs")

    @pytest.mark.parametrize(
        ("filters", "expected"),
        [
            (["--status=READY"], {"waiting", "letter"}),
            (["--status", "dead,Cancelled"], {"dead", "cancelled"}),
            (["--status=DEAD", "--status=READY"], {"dead", "waiting", "letter"}),
            (["--status=WAITING"], set()),
            (["--name=commanded.post"], {"letter"}),
            (["--name=commanded.post,commanded.flow"], {"letter"}),
            (["--name=unknown"], set()),
            (["--queue-name=letters", "--queue-name=x"], {"letter"}),
            (["--queue-name=commanded,letters", "--status=READY"], {"waiting", "letter"}),
            (["--error-class=RefusedError"], {"dead"}),
            (["--error-class=tests.test_command_durable.RefusedError"], {"dead"}),
            (["--error-class=fused"], set()),
            (["--since=1h"], {"waiting", "dead", "cancelled"}),
            (["--since", "3h", "--queue-name=letters"], {"letter"}),
            (["--since=90", "--status=DEAD"], {"dead"}),
        ],
    )
    def test_filters_choose(self, hand, filters, expected):
        named = {"dead": dead(hand, RefusedError()), "waiting": send.enqueue()}
        named["cancelled"] = send.enqueue()
        named["cancelled"].cancel()
        named["letter"] = post.enqueue()
        earlier = django_timezone.now() - 2 * HOUR
        # The dead one was enqueued long ago too, but it ended just now.
        both = [named["letter"].pk, named["dead"].pk]
        Job.objects.filter(pk__in=both).update(enqueued_at=earlier)
        found = set(ids(durable("jobs", *filters)))
        assert found == {str(named[name].pk) for name in expected}

    def test_since_goes_by_the_clock_of_the_database(self):
        send.enqueue()
        connection.durable_clock_offset = 2 * HOUR
        try:
            assert durable("jobs", "--since=1h") == []
            assert len(durable("jobs", "--since=3h")) == 1
        finally:
            del connection.durable_clock_offset

    @pytest.mark.parametrize(
        ("flags", "sentence"),
        [
            (["--status=ENDED"], "'ENDED' is not a status: READY, RUNNING, WAITING"),
            (["--since=soon"], "'soon' is not a duration"),
            (["--limit=0"], "'0' is not a whole number from 1 on"),
            (["--limit=x"], "'x' is not a whole number from 1 on"),
            (["--wrong"], "unrecognized arguments: --wrong"),
        ],
    )
    def test_wrong_flags_are_named(self, flags, sentence):
        with pytest.raises(CommandError, match=re.escape(sentence)):
            call_command("durable", "jobs", *flags)


class TestShow:
    def test_it_has_what_the_list_has_and_all_that_belongs_to_the_job(self, hand):
        job = send.using(
            idempotency_key="o-42", metadata={"a": "b"}, max_attempts=2, priority=3
        ).enqueue(42, copy=True)
        hand.fail(hand.take(), ValueError("first"))
        hand.kill(hand.take(), RefusedError("second"))
        new = DeadLetter.objects.get(job=job).replay()
        document = durable("show", str(job.pk))
        assert durable("jobs", "--status=DEAD")[0].items() <= document.items()
        assert document["args"] == [42]
        assert document["kwargs"] == {"copy": True}
        assert document["result"] is None
        assert [(a["number"], a["outcome"], a["message"]) for a in document["attempts"]] == [
            (1, "failed", "first"),
            (2, "failed", "second"),
        ]
        assert document["attempts"][0]["worker"] == "hand"
        assert document["steps"] == document["signals"] == document["children"] == []
        letter = document["dead_letter"]
        assert letter["reason"] == "permanent"
        assert letter["message"] == "second"
        assert letter["attempt_count"] == 2
        assert letter["replayed_as"] == str(new.pk)
        events = [entry["event"] for entry in document["timeline"]]
        assert events == ["enqueued", "started", "failed", "started", "failed", "dead", "replayed"]
        assert document["metadata"] == {"a": "b"}
        assert (document["priority"], document["max_attempts"]) == (3, 2)
        assert document["idempotency_key"] is None
        assert durable("show", str(new.pk))["idempotency_key"] == "o-42"

    def test_a_person_sees_it_all(self, hand):
        job = send.using(metadata={"a": "b"}).enqueue("\x1b[31m\u202ered", copy=True)
        hand.kill(hand.take(), RefusedError("no \x1b[31mmoney"))
        shown = text("show", str(job.pk))
        assert "\x1b" not in shown
        assert "\u202e" not in shown
        assert re.search(r"^Status +DEAD$", shown, re.MULTILINE)
        assert re.search(r"^kwargs +{\"copy\": true}$", shown, re.MULTILINE)
        assert "RefusedError: no \\x1b[31mmoney" in shown
        assert "Traceback of attempt 1" in shown
        assert "dead: permanent" in shown
        assert "Result" not in shown

    def test_children_are_listed(self, hand):
        flow.enqueue()
        claim = hand.take()
        child = bear(claim, send, 1)
        hand.park(claim, awaited=[child])
        document = durable("show", str(claim.id))
        assert document["children"] == [
            {"id": str(child), "name": "commanded.send", "status": "READY"}
        ]
        assert document["blocked_on"] == "waiting for 1 job (commanded.send)"
        assert durable("show", str(child))["parent"] == str(claim.id)
        fork = Job.objects.get(pk=child).fork()
        assert durable("show", str(fork.pk))["forked_from"] == str(child)
        assert "Children, 1" in text("show", str(claim.id))

    def test_a_result_is_shown_also_when_it_is_none(self, hand):
        first, second = send.enqueue(), send.enqueue()
        hand.succeed(hand.take(), {"sum": Decimal("1.10")})
        hand.succeed(hand.take())
        assert durable("show", str(first.pk))["result"] == {"sum": "1.10"}
        assert '{"sum": "1.10"}' in text("show", str(first.pk))
        assert text("show", str(second.pk)).count("null") == 1

    def test_long_payloads_are_cut_for_people_only(self):
        job = send.enqueue("x" * 5000)
        assert "more; --json has all]" in text("show", str(job.pk))
        assert durable("show", str(job.pk))["args"] == ["x" * 5000]

    def test_a_payload_that_cannot_be_read_is_null_with_a_note(self):
        job = send.enqueue()
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE durable_job SET args = %s WHERE id = %s", ['[{"$": ["gone"]}]', job.pk]
            )
        document = durable("show", str(job.pk))
        assert document["args"] is None
        assert "undecodable" in document["args_note"]
        assert document["kwargs"] == {}
        assert "kwargs_note" not in document
        assert "undecodable" in text("show", str(job.pk))

    @pytest.mark.parametrize("wrong", ["42", "not-an-id", "", "--", "é" * 200])
    def test_a_malformed_id_is_refused_with_a_sentence(self, wrong):
        with pytest.raises(CommandError) as caught:
            call_command("durable", "show", "--", wrong)
        assert "is not the id of a job, which is a UUID" in str(caught.value)
        assert caught.value.returncode == 1

    def test_an_unknown_id_is_refused_with_a_sentence(self):
        key = uuid4()
        assert refused("show", str(key)) == (None, f"no job has the id {key}", 1)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ([None, True, 1, 1.5, "é"], [None, True, 1, 1.5, "é"]),
        ({"a": {"b": (1, (2,))}}, {"a": {"b": [1, [2]]}}),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset(["b", "a"]), ["a", "b"]),
        ({None, "a", 1}, ["a", 1, None]),
        (Decimal("1.10"), "1.10"),
        (datetime(2026, 1, 2, 3, 4, 5, 6), "2026-01-02T03:04:05.000006"),  # noqa: DTZ001
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00+00:00"),
        (datetime(2026, 1, 2, tzinfo=timezone(HOUR)), "2026-01-02T00:00:00+01:00"),
        (date(2026, 1, 2), "2026-01-02"),
        (timedelta(minutes=5), "P0DT00H05M00S"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (b"\x00\xff", "AP8="),
        (Size.SMALL, "Size.SMALL"),
    ],
)
def test_typed_values_are_shown_as_text(value, shown, hand):
    job = post.enqueue(value)
    hand.succeed(hand.take(), value)
    assert plain(value) == shown
    document = durable("show", str(job.pk))
    assert document["args"] == [shown]
    assert document["result"] == shown


class TestEnqueue:
    def test_a_job_is_stored_with_its_arguments(self):
        document = durable("enqueue", "commanded.send", "--args=[42]", '--kwargs={"copy": true}')
        job = Job.objects.get()
        assert document["id"] == str(job.pk)
        assert document["created"] is True
        assert (job.name, job.args, job.kwargs) == ("commanded.send", [42], {"copy": True})

    def test_a_person_sees_the_id(self):
        shown = text("enqueue", "commanded.send")
        assert shown == f"Enqueued {Job.objects.get().pk}.\n"

    def test_all_options_of_using_are_flags(self):
        durable(
            "enqueue",
            "commanded.send",
            "--queue-name=mail",
            "--priority=high",
            "--run-after=2100-01-01T09:00:00+01:00",
            "--max-attempts=7",
            "--backoff=initial=5s,factor=3,maximum=1h,jitter=0",
            "--timeout=90",
            "--idempotency-key=k",
            "--on-duplicate=replace",
            "--metadata=a=b",
            "--metadata=c=d=e",
            "--concurrency-key=c",
            "--requires=gpu",
        )
        job = Job.objects.get()
        assert (job.queue_name, job.priority, job.max_attempts) == ("mail", 10, 7)
        assert job.run_after == datetime(2100, 1, 1, 8, tzinfo=UTC)
        assert job.options["timeout"] == 90
        assert job.options["backoff"] == (
            Backoff(timedelta(seconds=5), 3.0, timedelta(hours=1), 0.0).to_json()
        )
        assert job.metadata == {"a": "b", "c": "d=e"}
        assert (job.idempotency_key, job.concurrency_key, job.requires) == ("k", "c", "gpu")

    def test_none_is_a_value(self):
        durable("enqueue", "commanded.send", "--max-attempts=none", "--timeout=None")
        job = Job.objects.get()
        assert job.max_attempts is None
        assert job.options == {"timeout": None}

    def test_a_delay_counts_from_now(self):
        durable("enqueue", "commanded.send", "--run-after=2h", "--priority=-3")
        job = Job.objects.get()
        assert job.run_after - job.enqueued_at == 2 * HOUR
        assert job.priority == -3

    def test_a_naive_moment_is_in_the_current_time_zone(self):
        with django_timezone.override("Asia/Tokyo"):
            durable("enqueue", "commanded.send", "--run-after=2100-01-01T09:00")
        assert Job.objects.get().run_after == datetime(2100, 1, 1, tzinfo=UTC)

    def test_a_key_that_is_taken_gives_the_job_that_has_it(self):
        first = durable("enqueue", "commanded.send", "--idempotency-key=k")
        again = durable("enqueue", "commanded.send", "--idempotency-key=k")
        assert (again["id"], again["created"]) == (first["id"], False)
        assert "has the key already; it is READY" in text(
            "enqueue", "commanded.send", "--idempotency-key=k"
        )
        document, sentence, code = refused(
            "enqueue", "commanded.send", "--idempotency-key=k", "--on-duplicate=no-reuse"
        )
        assert document is None
        assert first["id"] in sentence
        assert code == 1

    @pytest.mark.parametrize("name", ["commanded.sned", "send", "commanded.Send"])
    def test_an_unknown_name_gets_those_near_it(self, name):
        _, sentence, code = refused("enqueue", name)
        assert sentence.startswith(f"no job type is called {name!r}; near it: ")
        assert "commanded.send" in sentence
        assert code == 1

    def test_a_name_like_no_other_gets_no_hint(self):
        assert refused("enqueue", "zzzzqqqq")[1] == "no job type is called 'zzzzqqqq'"

    def test_a_wrong_call_stores_nothing(self):
        _, sentence, code = refused("enqueue", "commanded.send", '--kwargs={"wrong": 1}')
        assert "unexpected keyword argument 'wrong'" in sentence
        assert code == 1
        assert not Job.objects.exists()

    def test_an_argument_that_cannot_be_stored_is_named(self):
        _, sentence, code = refused("enqueue", "commanded.send", '--args=["\\u0000"]')
        assert "'order' contains a NUL character" in sentence
        assert code == 1

    @pytest.mark.parametrize(
        ("flag", "sentence"),
        [
            ("--args={}", "must be a list, such as '[42]'"),
            ("--args=[1", "not JSON"),
            ("--args=[NaN]", "NaN is not JSON"),
            ("--kwargs=[]", "must be an object"),
            ("--priority=urgent", "neither a whole number nor one of LOW, NORMAL"),
            ("--run-after=tomorrow", "neither a duration, such as 5m, nor a moment"),
            ("--max-attempts=many", "neither a whole number nor none"),
            ("--timeout=-5", "is not a duration"),
            ("--backoff=first=2s", "'first' is not a part of a backoff"),
            ("--backoff=factor=0", "factor must be"),
            ("--backoff=factor=x", "could not convert"),
            ("--metadata=a", "'a' is not KEY=VALUE"),
            ("--on-duplicate=ignore", "'ignore' is not one of return_existing"),
        ],
    )
    def test_a_wrong_flag_is_named(self, flag, sentence):
        with pytest.raises(CommandError, match=re.escape(sentence)):
            call_command("durable", "enqueue", "commanded.send", flag)

    @pytest.mark.parametrize("flag", ["--priority=101", "--max-attempts=0", "--queue-name="])
    def test_a_value_out_of_range_is_wrong_usage(self, flag):
        assert refused("enqueue", "commanded.send", flag)[2] == 2


class TestCancel:
    def test_each_outcome_is_told(self, hand):
        ended = dead(hand, RefusedError())
        running = send.enqueue()
        hand.take()
        waiting = send.enqueue()
        keys = [str(job.pk) for job in (waiting, running, ended)]
        document = durable("cancel", *keys, "--reason=closed")
        assert ids(document) == keys
        assert [row["outcome"] for row in document] == ["cancelled", "requested", "finished"]
        assert Job.objects.get(pk=waiting.pk).cancel_reason == "closed"
        assert Job.objects.get(pk=running.pk).cancel_reason == "closed"

    def test_children_are_cancelled_too_unless_the_flag_says_no(self, hand):
        for flags, status in ((["--no-tree"], "READY"), ([], "CANCELLED")):
            flow.enqueue()
            claim = hand.take()
            child = bear(claim, send, 1)
            hand.park(claim, awaited=[child])
            document = durable("cancel", str(claim.id), *flags)
            assert ids(document) == [str(claim.id)]
            assert Job.objects.get(pk=child).status == status
            Job.objects.filter(pk=child).cancel()

    def test_an_unknown_id_does_not_keep_the_others_from_it(self):
        job, key = send.enqueue(), uuid4()
        document, sentence, code = refused("cancel", str(key), str(job.pk))
        assert (document[0]["id"], document[0]["outcome"]) == (str(job.pk), "cancelled")
        assert sentence == f"no job has the id {key}"
        assert code == 1

    def test_a_malformed_id_keeps_all_from_it(self):
        job = send.enqueue()
        assert refused("cancel", str(job.pk), "x")[0] is None
        assert Job.objects.get().status == "READY"

    def test_all_means_the_unfinished_that_pass_the_filters(self, hand):
        dead(hand, RefusedError())
        letter = post.enqueue()
        sends = [send.enqueue() for _ in range(3)]
        assert ids(durable("cancel", "--all", "--name=commanded.send", "--limit=2")) == [
            str(job.pk) for job in sends[:2]
        ]
        assert set(ids(durable("cancel", "--all"))) == {str(letter.pk), str(sends[2].pk)}
        assert durable("cancel", "--all") == []
        assert not Job.objects.ready().exists()

    def test_more_than_a_batch_is_cancelled(self):
        send.enqueue_many([((), {})] * 450)
        document = durable("cancel", "--all")
        assert {row["outcome"] for row in document} == {"cancelled"}
        assert len(document) == 450

    def test_a_dry_run_only_lists(self, hand):
        running = send.enqueue()
        hand.take()
        waiting = send.enqueue()
        document = durable("cancel", "--all", "--dry-run")
        assert {row["id"]: row["outcome"] for row in document} == {
            str(running.pk): "requested",
            str(waiting.pk): "cancelled",
        }
        assert Job.objects.get(pk=waiting.pk).status == "READY"
        assert Job.objects.get(pk=running.pk).cancel_requested_at is None
        assert "2 jobs would be cancelled." in text("cancel", "--all", "--dry-run")
        assert "Cancelled 2 jobs." in text("cancel", "--all")

    @pytest.mark.parametrize(
        "flags", [[], ["--name=x"], [str(uuid4()), "--all"], [str(uuid4()), "--since=0"]]
    )
    def test_it_must_be_clear_which_jobs_are_meant(self, flags):
        send.enqueue()
        assert refused("cancel", *flags)[2] == 2
        assert refused("replay", *flags)[2] == 2
        assert Job.objects.get().status == "READY"


class TestReplay:
    def test_a_job_or_its_dead_letter_is_named(self, hand):
        first, second = dead(hand, RefusedError()), dead(hand, RefusedError())
        document = durable("replay", str(first.pk), str(second.dead_letter.pk))
        assert ids(document) == [str(first.pk), str(second.pk)]
        for row in document:
            new = Job.objects.get(pk=row["new_id"])
            assert (new.status, str(new.replay_of.job_id)) == ("READY", row["id"])
            assert new.replay_of.replayed_by.endswith("(manage.py durable)")

    def test_what_cannot_be_replayed_is_named_and_the_others_are(self, hand):
        done, fresh = dead(hand, RefusedError()), dead(hand, RefusedError())
        bare = dead(hand, RefusedError())
        bare.dead_letter.delete()
        new = done.dead_letter.replay()
        key = uuid4()
        wanted = [done.pk, new.pk, bare.pk, key, 2**40, fresh.pk]
        document, sentence, code = refused("replay", *map(str, wanted))
        assert ids(document) == [str(fresh.pk)]
        assert sentence.splitlines() == [
            f"{done.pk} has been replayed already, as {new.pk}",
            f"{new.pk} is READY: only dead jobs can be replayed",
            f"the dead letter of {bare.pk} has been deleted",
            f"no job has the id {key}",
            f"there is no dead letter {2**40}",
        ]
        assert code == 1

    def test_a_job_named_twice_is_replayed_once(self, hand):
        job = dead(hand, RefusedError())
        document = refused("replay", str(job.pk), str(job.dead_letter.pk), str(job.pk))[0]
        assert ids(document) == [str(job.pk)]

    def test_a_number_too_long_for_a_dead_letter_is_no_id(self):
        assert refused("replay", "9" * 30)[1:] == (
            f"'{'9' * 30}' is not the id of a job, which is a UUID: see `durable jobs`",
            1,
        )

    def test_all_means_the_dead_that_pass_and_were_not_replayed(self, hand):
        done = dead(hand, RefusedError())
        done.dead_letter.replay().cancel()
        others = [dead(hand, RefusedError()), dead(hand, ValueError()), dead(hand, RefusedError())]
        document = durable("replay", "--all", "--error-class=RefusedError", "--limit=1")
        assert ids(document) == [str(others[0].pk)]
        Job.objects.ready().cancel()
        assert ids(durable("replay", "--all")) == [str(others[1].pk), str(others[2].pk)]
        assert durable("replay", "--all") == []

    def test_a_rate_spreads_the_starts(self, hand):
        for _ in range(3):
            dead(hand, RefusedError())
        document = durable("replay", "--all", "--rate=2/m")
        starts = [Job.objects.get(pk=row["new_id"]) for row in document]
        delays = [job.run_after - job.enqueued_at for job in starts]
        assert delays == [timedelta(0), timedelta(seconds=30), timedelta(seconds=60)]

    def test_a_dry_run_only_lists(self, hand):
        job = dead(hand, RefusedError())
        (row,) = durable("replay", "--all", "--dry-run")
        assert (row["id"], row["new_id"]) == (str(job.pk), None)
        assert Job.objects.count() == 1
        assert "1 job would be replayed." in text("replay", str(job.pk), "--dry-run")
        assert "Replayed 1 job." in text("replay", str(job.pk))
        with pytest.raises(AlreadyReplayed):
            job.dead_letter.replay()


def test_text_for_people_cannot_touch_the_terminal():
    assert printable("a\x1b[2Jb\tc\u202e\n\x9b é") == "a\\x1b[2Jb\\tc\\u202e\\n\\x9b é"


def test_colours_do_not_break_the_columns(hand):
    dead(hand, RefusedError())
    send.enqueue()
    out = StringIO()
    call_command("durable", "jobs", stdout=out, force_color=True)
    assert "\x1b[" in out.getvalue()
    bare = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    assert bare == text("jobs")


@pytest.fixture
def process(transactional_db):
    """Run `manage.py durable` in a process of its own, on the database of the test."""
    address = urlsplit(os.environ["DATABASE_URL"])
    url = address._replace(path=f"/{connection.settings_dict['NAME']}").geturl()

    def run(*args, **environment):
        return subprocess.run(
            [sys.executable, MANAGE, "durable", *args],
            env={**os.environ, "DATABASE_URL": url, "DJANGO_COLORS": "", **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


ODD = "\udcff"
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["cancel", "--all", "--reason", ODD], "can't store"),
        (["cancel", "--all", "--reason", "a\0b"], "can't store"),
        (["jobs", "--name", ODD], "can't store"),
        (["replay", "--all", "--queue-name", f"letters,{ODD}"], "can't store"),
        (["replay-check", "--error-class", ODD], "can't store"),
        (["jobs", "--since", "999999999d"], "longer than 36500 days"),
        (["enqueue", send.name, "--args", DEEP], "not JSON"),
        (["signal", str(uuid4()), "word", "--payload", DEEP], "not JSON"),
        (["enqueue", "commanded.keyed"], "concurrency_key"),
    ],
)
def test_what_nobody_can_mean_is_a_sentence(args, sentence):
    @job(name="commanded.keyed", concurrency_key=lambda: "")
    def keyed():
        """Have a key that is none."""

    document, said, _code = refused(*args)
    assert document is None
    assert sentence in said
    registry.remove(keyed)


class TestAsAProcess:
    def test_json_is_all_there_is_on_stdout(self, process):
        job = send.enqueue()
        done = process("jobs", "--json")
        assert (done.returncode, done.stderr) == (0, "")
        assert ids(json.loads(done.stdout)) == [str(job.pk)]

    def test_an_error_is_a_sentence_and_exit_1(self, process):
        done = process("show", str(uuid4()), "--json")
        assert (done.returncode, done.stdout) == (1, "")
        assert re.fullmatch(r"CommandError: no job has the id \S+\n", done.stderr)

    def test_partial_success_is_told_on_both_channels(self, process):
        job = send.enqueue()
        done = process("cancel", str(job.pk), str(uuid4()), "--json")
        assert done.returncode == 1
        assert json.loads(done.stdout)[0]["outcome"] == "cancelled"
        assert "no job has the id" in done.stderr

    @pytest.mark.parametrize(
        "args",
        [
            [],
            ["unknown"],
            ["show"],
            ["jobs", "--status=x"],
            ["enqueue", "a", "--args=1"],
            ["cancel"],
            ["cancel", "--all", str(uuid4())],
        ],
    )
    def test_wrong_usage_is_exit_2(self, process, args):
        done = process(*args)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr

    def test_flags_of_every_command_stand_on_either_side(self, process):
        send.enqueue()
        for args in (["--no-color", "jobs"], ["jobs", "--no-color", "-v2", "--skip-checks"]):
            done = process(*args)
            assert (done.returncode, done.stderr) == (0, "")
            assert "\x1b" not in done.stdout
        forced = process("jobs", "--force-color")
        assert "\x1b" in forced.stdout

    def test_a_database_that_does_not_answer_is_a_sentence(self, process):
        done = process("status", DATABASE_URL="postgresql://nobody@127.0.0.1:1/none")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("CommandError: the database does not answer: ")
        assert len(done.stderr.splitlines()) == 1


def test_missing_tables_are_a_sentence():
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE durable_worker RENAME TO elsewhere")
    assert refused("workers")[1:] == ("a table is missing: run `manage.py migrate`", 1)


def test_the_environment_can_turn_colours_off(monkeypatch):
    from django_durable.management.commands.durable import Command

    monkeypatch.setenv("NO_COLOR", "1")
    command = Command()
    call_command(command, "status", stdout=StringIO())
    assert vars(command.style) == vars(no_style())


def test_every_flag_of_every_subcommand_is_in_the_reference():
    reference = (MANAGE.parent / "docs" / "reference" / "commands.md").read_text()
    for name, subcommand in SUBCOMMANDS.items():
        assert re.search(rf"^### `{name}\b", reference, re.MULTILINE)
        parser = CommandParser()
        subcommand.add_arguments(parser)
        for flag in (f for action in parser._actions for f in action.option_strings):
            assert flag in ("-h", "--help") or f"`{flag}" in reference
