"""What the rows tell of jobs, queues and workers, judged by the database's clock."""

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.utils import timezone

from django_durable import Backoff, JobContext, PermanentFailure, job, operations, step, workflow
from django_durable.choices import AttemptOutcome
from django_durable.inspection import (
    blocked_on,
    blocked_on_many,
    is_alive,
    queue_counts,
    status_counts,
    summary,
    timeline,
    with_errors,
    with_liveness,
    worker_states,
)
from django_durable.models import Attempt, Job, Queue, Worker
from tests.by_hand import Hand, bear, beat, job_of, silence
from tests.workflows.driving import AT_ONCE, go, go_one

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


@job(name="inspected.plain", queue_name="inspected")
def plain(number=0):
    """Do nothing."""


@job(name="inspected.gpu", queue_name="inspected", requires="gpu")
def gpu():
    """Need a capability."""


@job(name="inspected.keyed", queue_name="inspected", concurrency_key=lambda customer: customer)
def keyed(customer):
    """Run alone for its customer."""


@job(
    name="inspected.paired",
    queue_name="inspected",
    concurrency_key="pair",
    concurrency_limit=2,
)
def paired():
    """Run at most twice at once."""


@workflow(name="inspected.flow", queue_name="inspected")
def flow(context):
    """Wait for others."""


@job(name="inspected.rated", queue_name="inspected", rate_limit="2/h")
def rated():
    """Start at most so often."""


@job(
    name="inspected.tenant",
    queue_name="inspected",
    rate_limit="1/h",
    concurrency_key=lambda tenant: tenant,
    concurrency_limit=None,
)
def tenant_call(tenant):
    """Start at most so often for a tenant."""


@job(name="inspected.hasty", queue_name="inspected", start_within=timedelta(minutes=5))
def hasty():
    """Start soon or never."""


NAMES = [t.name for t in (plain, gpu, keyed, paired, flow, rated, tenant_call, hasty)]


@workflow(name="inspected.winding", queue_name="inspected", backoff=AT_ONCE)
def winding(context):
    """Fail, then park."""
    if context.attempt == 1:
        raise ValueError("the first time")
    context.step("one", str, 1)
    context.start("kid", plain)
    context.sleep("night", HOUR)


@job(name="inspected.broken", queue_name="inspected")
def broken():
    """Die."""
    raise PermanentFailure("broken")


@step(max_attempts=1)
def try_once():
    """Fail for good."""
    raise ValueError("the secret")


tried: list[int] = []


@step(max_attempts=2, backoff=Backoff(initial=HOUR, jitter=0.0))
def insist():
    """Fail once."""
    tried.append(1)
    if len(tried) == 1:
        raise ValueError("the first time")


@workflow(name="inspected.insisting", queue_name="inspected")
def insisting(context):
    """Have a step that is tried again."""
    if not context.job.resumed:
        tried.clear()
    context.step("insist", insist)


def refund(value):
    """Take the money back."""


@step(compensate=refund)
def spend():
    """Spend money."""


@workflow(name="inspected.spending", queue_name="inspected")
def spending(context):
    """Spend money, and die."""
    context.step("spend", spend)
    raise PermanentFailure("broken")


@workflow(name="inspected.gathering", queue_name="inspected")
def gathering(context):
    """Wait for two children, and die of a step that fails."""
    children = [context.start("good", plain), context.start("bad", broken)]
    context.gather(children, return_exceptions=True)
    with suppress(ValueError):
        context.step("tried", try_once)
    raise PermanentFailure("the secret")


@workflow(name="inspected.asking", queue_name="inspected")
def asking(context):
    """Wait for two signals."""
    answer = context.wait_for_signal("go")
    context.wait_for_signal("more")
    return answer


@workflow(name="inspected.patient", queue_name="inspected")
def patient(context, ids):
    """Wait for jobs of others."""
    context.gather([Job.objects.get(pk=pk) for pk in ids])


@pytest.fixture
def hand():
    return Hand(*NAMES)


@pytest.fixture
def worker():
    return beat(*NAMES)


def text_of(moment):
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


class TestWhatBlocksAJob:
    def test_a_delay_is_named_with_its_end(self):
        job = plain.using(run_after=HOUR).enqueue()
        assert job.blocked_on == f"scheduled until {text_of(job.run_after)}"

    def test_times_are_those_of_the_current_time_zone(self):
        at = datetime(2100, 1, 1, 12, tzinfo=UTC)
        job = plain.using(run_after=at).enqueue()
        with timezone.override("Asia/Tokyo"):
            assert blocked_on(job) == "scheduled until 2100-01-01 21:00:00 JST"

    @pytest.mark.parametrize(
        ("outcome", "words"),
        [
            (AttemptOutcome.FAILED, "attempt 1 failed"),
            (AttemptOutcome.TIMED_OUT, "attempt 1 timed out"),
        ],
    )
    def test_a_backoff_is_named_with_the_attempt(self, hand, outcome, words):
        plain.enqueue()
        job = hand.fail(hand.take(), ValueError("no"), delay=HOUR, outcome=outcome)
        assert job.blocked_on == f"retrying at {text_of(job.run_after)} after {words}"

    def test_a_rejection_is_no_failed_attempt(self, hand):
        plain.enqueue()
        job = hand.reject(hand.take(), HOUR)
        assert job.blocked_on == f"rejected once, offered again at {text_of(job.run_after)}"

    def test_a_paused_queue_is_named(self, worker):
        Queue.objects.create(name="inspected", paused=True)
        assert plain.enqueue().blocked_on == "queue 'inspected' is paused"

    def test_a_delay_comes_before_a_pause(self, worker):
        Queue.objects.create(name="inspected", paused=True)
        assert plain.using(run_after=HOUR).enqueue().blocked_on.startswith("scheduled until")

    def test_a_full_queue_is_named_with_its_limit(self, worker, hand):
        Queue.objects.create(name="inspected", max_running=1)
        first, second = plain.enqueue(), plain.enqueue()
        hand.take()
        assert blocked_on_many([first, second]) == {
            first.pk: "",
            second.pk: "queue 'inspected' is at its limit of 1 running job (1 run)",
        }

    def test_a_limit_below_what_runs_shows_how_many_run(self, worker, hand):
        waiting = [plain.enqueue() for _ in range(4)][3]
        hand.claim(3)
        Queue.objects.limit("inspected", max_running=2)
        assert waiting.blocked_on == ("queue 'inspected' is at its limit of 2 running jobs (3 run)")

    def test_a_held_key_is_named_with_its_holder(self, worker, hand):
        first, second = keyed.enqueue("ada"), keyed.enqueue("ada")
        other = keyed.enqueue("bob")
        claimed = {claim.id for claim in hand.claim()}
        assert claimed == {first.pk, other.pk}
        assert second.blocked_on == f"held by concurrency key 'ada' (job {first.pk} runs)"

    def test_a_key_blocks_only_at_its_limit(self, worker, hand):
        jobs = [paired.enqueue() for _ in range(3)]
        hand.claim(1)
        assert jobs[2].blocked_on == "waiting for a free slot"
        hand.claim(1)
        assert jobs[2].blocked_on == (
            f"held by concurrency key 'pair' (job {jobs[0].pk} and 1 more hold it)"
        )

    def test_a_parked_holder_of_a_key_is_named_as_such(self, worker, hand):
        first, second = keyed.enqueue("ada"), keyed.enqueue("ada")
        hand.park(hand.take(), wake_at=timezone.now() + HOUR, hold_key=True)
        assert second.blocked_on == (
            f"held by concurrency key 'ada' (job {first.pk} keeps it while parked)"
        )

    def test_full_slots_are_the_last_reason(self, worker):
        assert plain.enqueue().blocked_on == "waiting for a free slot"

    def test_running_and_ended_jobs_are_not_blocked(self, worker, hand):
        job = plain.enqueue()
        claim = hand.take()
        assert job.blocked_on == ""
        hand.succeed(claim)
        assert job.blocked_on == ""
        assert job_of(claim).blocked_on == ""

    def test_a_deleted_job_is_not_blocked(self):
        job = plain.enqueue()
        job.cancel()
        stale = Job.objects.get(pk=job.pk)
        stale.status = Job.Status.READY
        job.delete()
        assert blocked_on(stale) == ""


class TestWorkersThatMissSomething:
    def blocked(self, job_type=plain):
        return job_type.enqueue().blocked_on

    def test_no_worker_at_all(self):
        assert self.blocked() == "no live worker serves it: none is running"

    def test_a_dead_worker_serves_nothing(self, worker):
        silence(worker, timedelta(seconds=61))
        assert self.blocked() == "no live worker serves it: none is running"

    def test_a_draining_worker_claims_nothing_more(self):
        beat(*NAMES, draining=True)
        assert self.blocked() == "no live worker serves it: all are draining"

    def test_an_unknown_job_type(self):
        beat("another")
        assert self.blocked() == (
            "no live worker serves it: nobody knows the job type 'inspected.plain'"
        )

    @pytest.mark.parametrize("columns", [{"queues": ["mail"]}, {"excluded_queues": ["inspected"]}])
    def test_a_queue_that_nobody_serves(self, columns):
        beat(*NAMES, **columns)
        beat("another")
        assert self.blocked() == (
            "no live worker serves it: nobody who knows the job type serves queue 'inspected'"
        )

    @pytest.mark.parametrize("queues", [[], ["*"], ["mail", "inspected"]])
    def test_a_queue_that_somebody_serves(self, queues):
        beat(*NAMES, queues=queues)
        assert self.blocked() == "waiting for a free slot"

    def test_a_capability_that_nobody_has(self):
        beat(*NAMES, capabilities=["tpu"])
        beat("another", capabilities=["gpu"])
        assert self.blocked(gpu) == (
            "no live worker serves it:"
            " nobody who serves its queue and job type has capability 'gpu'"
        )

    def test_a_capability_that_somebody_has(self):
        beat(*NAMES, capabilities=["tpu", "gpu"])
        assert self.blocked(gpu) == "waiting for a free slot"


class TestParkedJobs:
    def test_a_sleeper_is_shown_with_its_wake_up(self, worker, hand):
        flow.enqueue()
        wake_at = timezone.now() + HOUR
        job = hand.park(hand.take(), wake_at=wake_at)
        assert job.blocked_on == f"sleeping until {text_of(wake_at)}"

    def test_a_sleeper_past_its_wake_up_waits_like_the_others(self, worker, hand):
        flow.enqueue()
        job = hand.park(hand.take(), wake_at=timezone.now())
        assert job.blocked_on == "waiting for a free slot"

    def test_awaited_jobs_are_counted_and_named(self, worker, hand):
        flow.enqueue()
        claim = hand.take()
        children = [bear(claim, plain, 1), bear(claim, plain, 2), bear(claim, gpu)]
        job = hand.park(claim, awaited=children)
        assert job.blocked_on == "waiting for 3 jobs (2 x inspected.plain, inspected.gpu)"
        wake_at = timezone.now() + HOUR
        Job.objects.filter(pk=job.pk).update(due_at=wake_at)
        assert job.blocked_on.endswith(f"gpu), until {text_of(wake_at)} at the latest")

    def test_a_single_awaited_job_is_one(self, worker, hand):
        flow.enqueue()
        claim = hand.take()
        job = hand.park(claim, awaited=[bear(claim, plain)])
        assert job.blocked_on == "waiting for 1 job (inspected.plain)"

    def test_only_some_job_types_are_named(self, worker, hand):
        flow.enqueue()
        claim = hand.take()
        children = [bear(claim, t) for t in (plain, gpu, paired, flow)]
        children += [bear(claim, keyed, "a"), bear(claim, keyed, "b")]
        job = hand.park(claim, awaited=children)
        assert job.blocked_on == (
            "waiting for 6 jobs (2 x inspected.keyed, inspected.flow, inspected.gpu, others)"
        )

    def test_a_long_list_is_counted_up_to_a_bound(self, worker, hand):
        flow.enqueue()
        claim = hand.take()
        awaited = [j.pk for j in plain.enqueue_many([((), {})] * 1001)]
        job = hand.park(claim, awaited=awaited)
        assert job.blocked_on == "waiting for 1000 jobs or more (1000 x inspected.plain)"

    def test_the_last_ending_makes_it_wait_for_a_slot(self, worker, hand):
        flow.enqueue()
        claim = hand.take()
        job = hand.park(claim, awaited=[bear(claim, plain)])
        hand.succeed(hand.take())
        assert job.blocked_on == "waiting for a free slot"


class TestRates:
    def test_a_rate_of_the_type_is_named_with_its_next_start(self, hand, worker):
        jobs = [rated.enqueue() for _ in range(3)]
        first, _second = hand.claim()
        opens = text_of(first.claimed_at + HOUR)
        assert blocked_on(jobs[2]) == (
            "rate limited: job type 'inspected.rated' has used up 2/h,"
            f" the next start is possible at {opens}"
        )

    def test_a_rate_under_a_key_names_the_key(self, hand, worker):
        jobs = [tenant_call.enqueue(name) for name in ("a", "a", "b")]
        assert {blocked_on(one) for one in jobs} == {"waiting for a free slot"}
        hand.claim()
        assert blocked_on(jobs[1]).startswith("rate limited: key 'a' has used up 1/h, the next")

    def test_a_rate_of_the_queue_names_the_queue_and_the_latest_opening_counts(self, hand, worker):
        jobs = [plain.enqueue() for _ in range(3)]
        Queue.objects.create(name="inspected", rate_limit="1/d")
        (first,) = hand.claim()
        opens = text_of(first.claimed_at + 24 * HOUR)
        assert blocked_on(jobs[1]) == (
            "rate limited: queue 'inspected' has used up 1/d,"
            f" the next start is possible at {opens}"
        )
        Queue.objects.update(rate_limit="2/d")
        assert blocked_on(jobs[1]) == "waiting for a free slot"

    def test_a_lowered_rate_opens_when_enough_starts_are_past(self, hand):
        Queue.objects.create(name="inspected", rate_limit="9/h")
        jobs = [plain.enqueue() for _ in range(4)]
        moments = []
        for minutes in (0, 1, 2):
            connection.durable_clock_offset = timedelta(minutes=minutes)
            moments.append(hand.take().claimed_at)
        Queue.objects.update(rate_limit="1/h")
        beat(*NAMES)
        try:
            assert text_of(moments[2] + HOUR) in blocked_on(jobs[3])
        finally:
            connection.durable_clock_offset = timedelta(0)

    def test_the_last_moment_for_a_first_start_is_named(self, hand, worker):
        job = hasty.enqueue()
        late = text_of(job.enqueued_at + timedelta(minutes=5))
        assert blocked_on(job) == f"waiting for a free slot; cancelled if not started by {late}"
        hand.fail(hand.take(), ValueError())
        assert "cancelled" not in blocked_on(job)


def test_many_jobs_cost_as_many_queries_as_few(hand, django_assert_max_num_queries, worker):
    def make():
        flow.enqueue()
        claim = hand.take()
        hand.park(claim, awaited=[bear(claim, plain)])
        flow.enqueue()
        hand.park(hand.take(), wake_at=timezone.now() + HOUR)
        keyed.enqueue("ada")
        plain.using(run_after=HOUR).enqueue()
        gpu.enqueue()

    Queue.objects.create(name="inspected", max_running=1000)
    for number in (1, 20):
        for _ in range(number):
            make()
        jobs = list(Job.objects.all())
        with django_assert_max_num_queries(8) as queries:
            answers = blocked_on_many(jobs)
        assert len(queries) == 7
        assert len(answers) == len(jobs)


def test_ended_jobs_cost_no_query(hand, django_assert_num_queries):
    plain.enqueue()
    jobs = [hand.succeed(hand.take())]
    with django_assert_num_queries(0):
        assert blocked_on_many(jobs) == {jobs[0].pk: ""}


class TestCounts:
    # Within a limit the counts come from other statements than all of them, and are the same.
    limits = pytest.mark.parametrize("limit", [None, 1000])

    @limits
    def test_jobs_are_counted_by_status(self, hand, limit):
        empty = {"READY": 0, "RUNNING": 0, "WAITING": 0}
        ended = {"SUCCESSFUL": 0, "DEAD": 0, "CANCELLED": 0}
        assert status_counts(limit) == {**empty, **ended}
        for _ in range(3):
            flow.enqueue()
        hand.succeed(hand.take())
        hand.kill(hand.take(), ValueError("no"))
        claim = hand.take()
        child = bear(claim, plain)
        hand.park(claim, awaited=[child])
        flow.enqueue()
        plain_flow = next(c for c in hand.claim(2) if c.name == flow.name)
        hand.park(plain_flow, wake_at=timezone.now() + HOUR)
        plain.enqueue().cancel()
        plain.enqueue()
        keyed.enqueue("ada")
        assert status_counts(limit) == {
            "READY": 2,
            "RUNNING": 1,
            "WAITING": 2,
            "SUCCESSFUL": 1,
            "DEAD": 1,
            "CANCELLED": 1,
        }

    def test_what_retention_has_given_up_is_not_counted(self, hand):
        plain.enqueue()
        job = hand.succeed(hand.take())
        Job.all_objects.filter(pk=job.pk).update(kept_until=timezone.now())
        assert status_counts()["SUCCESSFUL"] == 0

    @limits
    def test_queues_tell_what_is_due_what_runs_and_since_when(self, hand, limit):
        first = plain.enqueue()
        plain.enqueue()
        keyed.enqueue("ada")
        plain.using(run_after=HOUR).enqueue()
        gpu.using(queue_name="other", priority=5).enqueue()
        Job.objects.filter(pk=first.pk).update(due_at=first.due_at - HOUR)
        hand.scope = type(hand.scope)(frozenset([keyed.name]))
        hand.take()
        Queue.objects.create(name="inspected", paused=True, max_running=7)
        counts = {queue.name: queue for queue in queue_counts(limit)}
        ours = counts["inspected"]
        assert (ours.ready, ours.due, ours.running) == (3, 2, 1)
        assert (ours.paused, ours.max_running, ours.capped) == (True, 7, False)
        assert 3600 <= ours.oldest_ready_seconds < 3700
        assert (counts["other"].ready, counts["other"].paused) == (1, False)
        assert 0 <= counts["other"].oldest_ready_seconds < 100

    @limits
    def test_what_is_not_yet_due_has_no_age(self, limit):
        plain.using(run_after=HOUR, queue_name="later").enqueue()
        (later,) = [queue for queue in queue_counts(limit) if queue.name == "later"]
        assert (later.ready, later.due, later.oldest_ready_seconds) == (1, 0, None)

    def test_an_empty_queue_is_shown_if_somebody_uses_it(self):
        Queue.objects.create(name="with-a-row", paused=True)
        names = {queue.name: queue.ready for queue in queue_counts()}
        assert names["with-a-row"] == names["inspected"] == 0

    def test_a_limit_bounds_each_lane_and_hides_no_other(self):
        plain.enqueue_many([((), {})] * 20)
        plain.using(queue_name="small").enqueue()
        keyed.using(queue_name="keys").enqueue_many([(("a",), {})] * 20)
        counts = {queue.name: queue for queue in queue_counts(limit=10)}
        assert (counts["inspected"].ready, counts["inspected"].capped) == (10, True)
        assert (counts["small"].ready, counts["small"].capped) == (1, False)
        assert (counts["keys"].ready, counts["keys"].capped) == (10, True)
        plain.enqueue().cancel()
        assert status_counts(limit=10)["CANCELLED"] == 1
        assert status_counts()["READY"] == 41

    def test_the_summary_costs_a_fixed_number_of_queries(self, django_assert_num_queries):
        for number in (1, 30):
            for _ in range(number):
                plain.using(queue_name=f"q{number}").enqueue()
                beat(*NAMES, name=f"w{number}")
            with django_assert_num_queries(6):
                summary()

    def test_slots_are_those_of_living_workers(self, hand):
        beat(*NAMES, slots=4)
        silence(beat(*NAMES, slots=100), timedelta(minutes=5))
        plain.enqueue()
        hand.take()
        found = summary()
        assert (found.slots_used, found.slots_total) == (1, 4)


class TestWorkers:
    def test_a_worker_lives_for_two_leases_after_its_heartbeat(self):
        worker = beat(*NAMES, lease=timedelta(seconds=30))
        assert is_alive(worker)
        silence(worker, timedelta(seconds=50))
        assert is_alive(worker)
        silence(worker, timedelta(seconds=61))
        assert not is_alive(worker)

    def test_a_row_that_is_gone_is_not_alive(self, worker):
        Worker.objects.all().delete()
        assert not is_alive(worker)

    def test_an_annotated_worker_costs_no_query(self, worker, django_assert_num_queries):
        (known,) = with_liveness(Worker.objects.all())
        with django_assert_num_queries(0):
            assert is_alive(known)

    def test_the_clock_is_the_one_of_the_database(self, worker):
        connection.durable_clock_offset = timedelta(minutes=2)
        try:
            assert not is_alive(worker)
        finally:
            del connection.durable_clock_offset

    def test_states_name_the_dead_and_the_draining(self, worker):
        beat(*NAMES, name="leaving", draining=True)
        silence(beat(*NAMES, name="gone"), timedelta(minutes=5))
        states = [(state.worker.name, state.state) for state in worker_states()]
        assert states == [("beating", "running"), ("leaving", "draining"), ("gone", "dead")]

    def test_a_reused_name_counts_for_its_newest_incarnation(self):
        silence(beat(*NAMES, name="hand"), timedelta(minutes=5))
        new = beat(*NAMES, name="hand")
        plain.enqueue()
        Hand(*NAMES, worker="hand").take()
        running = {state.worker.pk: state.running for state in worker_states()}
        assert running[new.pk] == 1
        assert sum(running.values()) == 1

    def test_workers_of_one_name_share_what_runs_under_it(self):
        for _ in range(2):
            beat(*NAMES, name="hand", slots=2)
        for _ in range(3):
            plain.enqueue()
            Hand(*NAMES, worker="hand").take()
        assert [state.running for state in worker_states()] == [2, 1]


class TestErrors:
    def test_the_error_is_that_of_the_latest_attempt(self, hand):
        job = plain.enqueue()
        assert self.error(job) == (None, None)
        hand.fail(hand.take(), ValueError("first"))
        assert self.error(job) == ("ValueError", "first")
        claim = hand.take()
        assert self.error(job) == (None, None)
        hand.fail(claim, KeyError("second"))
        assert self.error(job) == ("KeyError", "'second'")
        hand.succeed(hand.take())
        assert self.error(job) == (None, None)

    def error(self, job):
        found = with_errors(Job.objects.all()).get(pk=job.pk)
        return found.last_error_class, found.last_message


class TestTimeline:
    def story(self, job, **options):
        job.refresh_from_db()
        entries = timeline(job, **options)
        assert entries == sorted(entries, key=lambda entry: entry.at)
        return [(entry.event, re.sub(r"[0-9a-f-]{36}", "<id>", entry.text)) for entry in entries]

    def story_without_numbers(self, job, **options):
        """Return the story without durations and moments."""
        times = re.compile(r"[0-9.]+ s(?=$|:| after)|(until|at) [0-9: -]+UTC")
        replace = {"u": "until <time>", "a": "at <time>"}
        return [
            (event, times.sub(lambda found: replace.get(found[0][0], "<n> s"), text))
            for event, text in self.story(job, **options)
        ]

    def test_a_success(self, hand):
        job = plain.enqueue()
        assert self.story(job) == [("enqueued", "enqueued")]
        hand.succeed(hand.take())
        assert self.story(job) == [
            ("enqueued", "enqueued"),
            ("started", "attempt 1 taken by worker hand"),
            ("succeeded", "succeeded"),
        ]

    def test_a_retry_a_death_and_a_replay(self, hand):
        job = plain.using(max_attempts=2).enqueue()
        hand.fail(hand.take(), ValueError("no"))
        hand.fail(hand.take(), ValueError("still no"))
        job.refresh_from_db()
        new = job.dead_letter.replay()
        assert self.story(job) == [
            ("enqueued", "enqueued"),
            ("started", "attempt 1 taken by worker hand"),
            ("failed", "attempt 1 failed: ValueError: no"),
            ("started", "attempt 2 taken by worker hand"),
            ("failed", "attempt 2 failed: ValueError: still no"),
            ("dead", "dead: exhausted: the last attempt failed or timed out"),
            ("replayed", "replayed as <id>"),
        ]
        assert self.story(new) == [("enqueued", "enqueued as the replay of <id>")]
        new.cancel()
        new.delete()
        assert self.story(job)[-1] == ("replayed", "replayed as a job that has been deleted")

    def test_a_cancellation_of_a_running_job(self, hand):
        job = plain.enqueue()
        claim = hand.take()
        assert job.cancel("too dear") == "requested"
        hand.fail(claim, ValueError("stopped"))
        assert self.story(job) == [
            ("enqueued", "enqueued"),
            ("started", "attempt 1 taken by worker hand"),
            ("cancel_requested", "cancellation requested"),
            ("cancelled", "attempt 1 was cancelled: ValueError: stopped"),
            ("cancelled", "cancelled: too dear"),
        ]

    def test_a_cancellation_of_a_waiting_job_is_one_moment(self):
        job = plain.enqueue()
        job.cancel()
        assert self.story(job) == [("enqueued", "enqueued"), ("cancelled", "cancelled")]

    def test_rejections(self, hand):
        job = plain.using(max_attempts=2).enqueue()
        hand.reject(hand.take(), timedelta(0))
        rejected = ("rejected", "rejected by worker hand")
        assert self.story(job) == [("enqueued", "enqueued"), rejected]
        hand.fail(hand.take(), ValueError("no"))
        hand.reject(hand.take(), timedelta(0))
        hand.succeed(hand.take())
        assert self.story(job) == [
            ("enqueued", "enqueued"),
            rejected,
            ("started", "attempt 1 taken by worker hand"),
            ("failed", "attempt 1 failed: ValueError: no"),
            rejected,
            ("started", "attempt 2 taken by worker hand"),
            ("succeeded", "succeeded"),
        ]

    def test_a_dead_job_whose_letter_was_deleted(self, hand):
        job = plain.enqueue()
        hand.kill(hand.take(), ValueError("no")).dead_letter.delete()
        assert self.story(job)[-1] == ("dead", "dead: its dead letter has been deleted")

    def test_a_run_that_goes_on_after_a_wait_is_no_new_start(self, hand):
        job = plain.using(max_attempts=2).enqueue()
        other = Hand(plain.name, worker="other")
        hand.park(hand.take(), wake_at=timezone.now() - HOUR)
        other.fail(other.take(), ValueError("no"))
        hand.succeed(hand.take())
        assert self.story(job) == [
            ("enqueued", "enqueued"),
            ("started", "attempt 1 taken"),
            ("resumed", "attempt 1 resumed by worker other"),
            ("failed", "attempt 1 failed: ValueError: no"),
            ("started", "attempt 2 taken by worker hand"),
            ("succeeded", "succeeded"),
        ]

    def test_a_later_attempt_is_resumed_after_what_it_did(self, hand):
        job = winding.enqueue()
        go_one(winding)
        go_one(winding)
        Job.objects.filter(pk=job.pk).update(due_at=timezone.now() - HOUR)
        job.steps.filter(kind="sleep").update(wake_at=timezone.now() - HOUR)
        go_one(winding)
        assert self.story_without_numbers(job) == [
            ("enqueued", "enqueued"),
            ("started", "attempt 1 taken by worker runner"),
            ("failed", "attempt 1 failed: ValueError: the first time"),
            ("step_succeeded", "step 'one' succeeded after <n> s"),
            ("child_made", "child 'kid' made (job <id>)"),
            ("waiting", "sleep 'night' waits until <time>"),
            ("resumed", "attempt 2 resumed by worker runner"),
            ("step_succeeded", "sleep 'night' succeeded after <n> s"),
            ("succeeded", "succeeded"),
        ]

    def test_the_ends_of_children_tell_what_woke_it(self):
        job = gathering.enqueue()
        go(gathering, plain, broken)
        events = {"child_made", "waiting", "child_ended", "resumed"}
        assert [entry for entry in self.story(job) if entry[0] in events] == [
            ("child_made", "child 'good' made (job <id>)"),
            ("child_made", "child 'bad' made (job <id>)"),
            ("waiting", "waits for child 'good', child 'bad'"),
            ("child_ended", "child 'good' succeeded"),
            ("child_ended", "child 'bad' died"),
            ("resumed", "attempt 1 resumed by worker runner"),
        ]

    def test_a_wait_for_many_jobs_names_the_first_and_tells_of_their_ends(self, hand):
        others = [plain.enqueue() for _ in range(5)]
        waiter = patient.enqueue([other.pk for other in others])
        go_one(patient)
        for _ in others:
            hand.succeed(hand.take())
        assert self.story(waiter) == [
            ("enqueued", "enqueued"),
            ("started", "attempt 1 taken by worker runner"),
            ("waiting", "waits for job <id>, job <id>, job <id> and 2 more"),
            *[("awaited_ended", "job <id> succeeded")] * 3,
        ]

    def test_a_job_made_due_by_code_and_by_a_person(self):
        job = plain.using(run_after=HOUR).enqueue()
        assert job.run_now() is True
        assert job.run_now() is False
        assert self.story(job) == [("enqueued", "enqueued"), ("run_now", "made due now")]
        Job.objects.filter(pk=job.pk).update(due_at=timezone.now() + HOUR)
        operations.run_now([job], by="ann")
        assert self.story(job)[-1] == ("run_now", "made due now by ann")

    def test_a_job_that_a_stopping_worker_hands_back(self, hand):
        job = plain.enqueue()
        hand.give_back(hand.take())
        assert self.story(job) == [
            ("enqueued", "enqueued"),
            ("started", "taken by worker hand"),
            ("handed_back", "handed back by worker hand"),
        ]

    def test_who_did_what_before_a_job_was_handed_back(self, hand):
        job = asking.enqueue()
        claim = Hand(asking.name, worker="first").take()
        JobContext(claim, asking, None).step("one", str, 1)
        hand.give_back(claim)
        Hand(asking.name, worker="second").take()
        assert self.story_without_numbers(job) == [
            ("enqueued", "enqueued"),
            ("started", "taken by worker first"),
            ("step_succeeded", "step 'one' succeeded after <n> s"),
            ("handed_back", "handed back by worker first"),
            ("resumed", "attempt 1 resumed by worker second"),
        ]

    def test_a_signal_that_came_again_after_its_wait(self):
        job = asking.enqueue()
        go_one(asking)
        job.signal("go", 1)
        go_one(asking)
        job.signal("go", 2)
        job.signal("more")
        go_one(asking)
        job.refresh_from_db()
        assert job.return_value == 1
        assert [text for _event, text in self.story_without_numbers(job) if "signal" in text] == [
            "signal 'go' waits",
            "signal 'go' succeeded after <n> s",
            "signal 'more' waits",
            "signal 'go' received after its wait was answered; only the last receipt is kept",
            "signal 'more' received",
            "signal 'more' succeeded after <n> s",
        ]

    def test_a_checkpoint_that_a_fork_has_copied(self):
        job = winding.enqueue()
        go_one(winding)
        go_one(winding)
        new = job.fork("night")
        assert self.story_without_numbers(new) == [
            ("enqueued", "enqueued as a fork of <id>"),
            ("step_copied", "step 'one' copied, earned at <time>"),
            ("step_copied", "child 'kid' copied, earned at <time>"),
        ]

    def test_a_signal_that_a_fork_has_copied(self):
        job = winding.enqueue()
        job.signal("early")
        go_one(winding)
        go_one(winding)
        new = job.fork("night")
        new.signal("late")
        story = self.story_without_numbers(new)
        assert story[0] == ("enqueued", "enqueued as a fork of <id>")
        assert [(event, text) for event, text in story if "signal" in event] == [
            ("signal_copied", "signal 'early' copied, received at <time>"),
            ("signal", "signal 'late' received"),
        ]

    def test_a_wait_for_the_next_try_of_a_step(self):
        job = insisting.enqueue()
        go_one(insisting)
        job.refresh_from_db()
        assert re.fullmatch(r"retrying step 'insist' at .{19,} after ValueError", blocked_on(job))
        job.steps.update(wake_at=timezone.now() - HOUR)
        Job.objects.filter(pk=job.pk).update(due_at=timezone.now() - HOUR)
        go_one(insisting)
        assert [text for event, text in self.story_without_numbers(job) if "step" in text] == [
            "step 'insist' failed in try 1: ValueError; waits for the next",
            "step 'insist' succeeded in try 2, <n> s after the first began",
        ]

    def test_the_undo_job_of_a_job_and_what_it_undoes(self):
        job = spending.enqueue()
        go_one(spending)
        assert self.story(job)[-2:] == [
            ("dead", "dead: permanent: an error that no further attempt can mend"),
            ("undo_made", "undo job <id> made"),
        ]
        go_one(spending)
        assert self.story(job)[-1] == ("undo_ended", "undo job succeeded")
        (undo,) = job.children.all()
        assert self.story(undo)[0] == ("enqueued", "enqueued to undo <id>")

    def test_the_forks_of_a_job(self):
        job = plain.enqueue()
        job.fork()
        assert self.story(job) == [("enqueued", "enqueued"), ("forked", "forked as <id>")]

    def test_of_many_moments_in_its_own_row_the_latest_stay(self, hand):
        job = plain.enqueue()
        for _ in range(103):
            hand.reject(hand.take(), timedelta(0))
        job.refresh_from_db()
        assert (len(job.events), job.rejections) == (100, 103)

    def test_messages_can_be_left_out(self):
        job = gathering.enqueue()
        go(gathering, plain, broken)
        told = [text for _event, text in self.story_without_numbers(job)]
        assert "step 'tried' failed after <n> s: ValueError: the secret" in told
        assert "attempt 1 failed: PermanentFailure: the secret" in told
        hidden = [text for _event, text in self.story_without_numbers(job, messages=False)]
        assert "step 'tried' failed after <n> s: ValueError" in hidden
        assert "attempt 1 failed: PermanentFailure" in hidden
        assert "secret" not in str(hidden)

    def test_of_many_attempts_the_last_ones_are_told(self, hand):
        job = plain.using(max_attempts=None).enqueue()
        for _ in range(5):
            hand.fail(hand.take(), ValueError("no"))
        story = self.story(job, limit=2)
        assert story[:2] == [
            ("enqueued", "enqueued"),
            ("omitted", "attempt 3 and those before are left out"),
        ]
        assert len(story) == 6
        assert Attempt.objects.filter(job=job).count() == 5
