"""The story, act by act."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from uuid import UUID

from django_durable.models import Job
from testproject.demo import DemoError, books, stage, telling
from testproject.demo.client import CREATED, FOUND, REFUSED, Client
from testproject.demo.interrupts import Interrupts
from testproject.demo.orders import Plan, Row
from testproject.demo.parcels import Parcels
from testproject.demo.processes import Program
from testproject.demo.story import Story, count, money
from testproject.shop import gateway, jobs
from testproject.shop.orders import LIMIT

POLL_SECONDS = 0.2
# After so long without any change the demonstration gives up.
PATIENCE_SECONDS = 60.0
LEFTOVERS_SECONDS = 30.0
# How many charges should hang before the worker is killed, and how long that may take.
HANGING = 5
HANGING_SECONDS = 10.0


class Acts:
    """Play the story of one plan; what it starts is stopped by the `stack`.

    `folder` takes the logs. The jobs of a worker that is killed are free after `lease` seconds.
    """

    def __init__(
        self,
        plan: Plan,
        story: Story,
        interrupts: Interrupts,
        stack: ExitStack,
        *,
        folder: Path,
        lease: float,
    ) -> None:
        self.plan = plan
        self.story = story
        self.interrupts = interrupts
        self.url = ""
        self.password = ""
        self._stack = stack
        self._folder = folder
        self._lease = lease
        self._workers: list[Program] = []
        self._programs: list[Program] = []
        self._parcels = Parcels(plan.run, story)

    def play(self) -> bool:
        """Play all acts; return whether the books agree."""
        began = time.monotonic()
        self.set_the_stage()
        self.take_first_orders()
        held, killed_at = self.kill_the_worker()
        self.take_over(held, killed_at)
        self.decide()
        self.story.act("What went wrong, and what became of it")
        telling.tell_refused(self.story, self.plan)
        telling.tell_retried(self.story, self.plan)
        self.story.act("The books, by SQL from the tables")
        agrees = telling.check_books(
            self.story, self.plan, self.rolled_back, self._parcels.balance()
        )
        self.story.say(f"From the first act to here it took {time.monotonic() - began:.1f} s.")
        return agrees

    def invite(self) -> None:
        """Tell where to look around, and as whom."""
        self.story.act("Look around")
        self.story.fact("Shop", self.url)
        self.story.fact("Admin", f"{self.url}admin/durable/job/")
        self.story.fact("User", stage.ADMIN)
        self.story.fact("Password", self.password)

    def stay(self) -> None:
        """Keep everything running until somebody asks to stop."""
        while True:
            self.pause()

    def pause(self) -> None:
        """Wait a moment; raise `Interrupted` on a signal, `DemoError` if a program has ended."""
        for program in self._programs:
            program.check()
        self.interrupts.pause(POLL_SECONDS)

    # 1

    def set_the_stage(self) -> None:
        """Make the tables and the user for the admin, and start the web server and a worker."""
        self.story.act("The stage")
        place = "at DATABASE_URL" if os.environ.get("DATABASE_URL") else "its data in .local/"
        self.story.fact("PostgreSQL", f"{stage.server_version()}, {place}")
        ran = stage.migrate()
        self.story.fact("Tables", f"{count(ran, 'migration')} applied" if ran else "up to date")
        self.password = stage.create_admin()
        stage.keep_slots_free()
        self.interrupts.check()
        web = self._start(stage.start_web(self._folder))
        self._start_worker()
        self.url = stage.web_url(web, self.interrupts)
        self.story.fact("Web server", f"process {web.process.pid}, {self.url}")
        self.story.fact("Logs", str(self._folder))
        self._finish_leftovers()
        stage.deal_cards(self.plan)

    def _start(self, program: Program) -> Program:
        self._stack.enter_context(program)
        self._programs.append(program)
        return program

    def _worker_name(self, number: int) -> str:
        return f"{self.plan.run}-worker-{number}"

    def _start_worker(self) -> None:
        number = len(self._workers) + 1
        name, log = self._worker_name(number), self._folder / f"worker-{number}.log"
        worker = self._start(stage.start_worker(name, self._lease, log))
        stage.worker_ready(worker, name, self.interrupts)
        pids = " and ".join(str(pid) for pid in worker.pids())
        self.story.fact("Worker", f"processes {pids}, {stage.SLOTS} slots, lease {self._lease:g} s")
        self._workers.append(worker)

    def _finish_leftovers(self) -> None:
        left = stage.unfinished_leftovers()
        if not left:
            return
        jobs_left = count(left, "job")
        self.story.say(f"An earlier run, ended in the middle, left {jobs_left}, which come first.")
        progress = self.story.progress("done", left)
        give_up_at = time.monotonic() + LEFTOVERS_SECONDS
        while left and time.monotonic() < give_up_at:
            self.pause()
            left = stage.unfinished_leftovers()
            progress.show(progress.total - min(left, progress.total))
        progress.end()

    # 2

    def take_first_orders(self) -> None:
        """Send orders until the gateway is to hang, and one that is rolled back."""
        self.story.act("Orders come in")
        self.story.say(
            "Each is a POST with an idempotency key, and becomes a job in the transaction that"
            " stores it. Every tenth is sent twice, as by an impatient client."
        )
        self.story.say(
            "One order goes out in parcels. A workflow charges it, books it, ships three parcels as"
            " children, sleeps, and waits for somebody to approve it."
        )
        self._parcels.place("approved")
        self._send(self.plan.rows[: self.plan.hang_at])
        row = Row(0, "C000", self.plan.rows[0].date, LIMIT + Decimal("0.01"))
        answer = Client(self.url).send(self.rolled_back, row)
        (left,) = books.ask(books.ROLLED_BACK, self.plan, reference=self.rolled_back)
        self.story.say(
            f"One more, of {money(row.amount)}, is over the limit, which the shop finds after"
            f" enqueueing the job: the transaction is rolled back and leaves {count(left, 'row')}."
        )
        if answer != REFUSED or left:
            raise DemoError("An order that was rolled back has left something.")

    @property
    def rolled_back(self) -> str:
        """Return the reference of the order that is rolled back."""
        return f"{self.plan.run}-too-large"

    def _send(self, rows: list[Row]) -> None:
        """Send these orders; the shop must take each once."""
        if not rows:
            return
        sendings = [(self.plan.reference(row), row) for row in self.plan.sendings(rows)]
        progress = self.story.progress("requests answered", len(sendings))
        began = time.monotonic()

        def show(answered: int) -> None:
            self.interrupts.check()
            progress.show(answered)

        answers = Client(self.url).send_all(sendings, show)
        progress.end()
        twice = len(sendings) - len(rows)
        took = time.monotonic() - began
        if answers[CREATED] != len(rows) or answers[FOUND] != twice:
            raise DemoError(f"The shop took {len(rows)} orders with the answers {dict(answers)}.")
        self.story.say(
            f"{count(len(rows), 'order')} taken in {took:.1f} s"
            + (f"; {twice} came twice, and met the order that was there." if twice else ".")
        )

    # 3

    def kill_the_worker(self) -> tuple[list[UUID], datetime]:
        """Let the gateway hang, send orders into that, and kill the worker in the middle.

        Return the jobs that it held, and when it was killed by the database's clock.
        """
        self.story.act("The worker is killed")
        worker, plan = self._workers[-1], self.plan
        self._parcels.wait_until_charged(self.pause)
        with gateway.hanging():
            self.story.say("The card gateway hangs: it takes requests, and answers none.")
            self._parcels.place("refused")
            self._send(plan.rows[plan.hang_at : plan.kill_at])
            self._wait_for_hanging_charges()
            self._programs.remove(worker)
            pids = " ".join(str(pid) for pid in worker.kill())
            killed_at = stage.database_time()
            running = Job.objects.running().filter(worker=self._worker_name(1))
            held = list(running.values_list("pk", flat=True))
        self.story.say(
            f"kill -9 {pids}: the worker and its child are gone, with {count(len(held), 'job')}"
            " in their hands."
        )
        return held, killed_at

    def _wait_for_hanging_charges(self) -> None:
        hanging = Job.objects.running().filter(name=jobs.charge_payment.name)
        hanging = hanging.filter(idempotency_key__startswith=f"{self.plan.run}-")
        wanted = min(HANGING, self.plan.kill_at - self.plan.hang_at)
        give_up_at = time.monotonic() + HANGING_SECONDS
        while time.monotonic() < give_up_at:
            if hanging.count() >= wanted and self._parcels.is_under_way():
                return
            self.pause()

    # 4

    def take_over(self, held: list[UUID], killed_at: datetime) -> None:
        """Start another worker, send the remaining orders, and wait until all jobs have ended."""
        self.story.act("Another worker takes over")
        self._start_worker()
        telling.tell_unheard_charges(self.story, held)
        self._send(self.plan.rows[self.plan.kill_at :])
        self._wait_for_jobs()
        telling.tell_take_over(self.story, held, killed_at)

    def decide(self) -> None:
        """Approve one delivery and refuse the other, over HTTP, and tell what becomes of them."""
        self.story.act("Two decisions")
        self.story.say(
            "One workflow was under way when its worker was killed, another was just charging. Both"
            " went on where they were. Now one is approved, and one refused, by a POST each."
        )
        self._parcels.decide(self.url)
        self._parcels.wait(self.pause)
        self._parcels.tell()

    def _wait_for_jobs(self) -> None:
        progress = self.story.progress("jobs done", self.plan.job_count)
        last, changed_at = None, time.monotonic()
        while True:
            counts = books.count_jobs(self.plan, killed=self._worker_name(1))
            still_open = books.count_open_orders(self.plan)
            progress.show(counts.finished, counts.remark())
            if not counts.unfinished and not still_open:
                break
            if (counts, still_open) != last:
                last, changed_at = (counts, still_open), time.monotonic()
            elif time.monotonic() > changed_at + PATIENCE_SECONDS:
                tail = self._workers[-1].log_tail()
                raise DemoError(f"Nothing has moved for {PATIENCE_SECONDS:g} s: {counts}.{tail}")
            self.pause()
        progress.end()
