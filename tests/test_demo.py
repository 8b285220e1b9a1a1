"""The demonstration: it plays to its end with books that agree, and leaves nothing behind."""

import os
import re
import select
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.parse import urlencode, urlsplit, urlunsplit
from uuid import uuid4

import psycopg
import pytest

from testproject.demo import DemoError, books, telling
from testproject.demo.orders import Plan, Row, read_orders, total
from testproject.demo.story import Story
from testproject.shop import jobs
from testproject.shop.models import GatewayCharge, Order, Payment, Receipt

CHECKOUT = Path(__file__).resolve().parent.parent


# The orders and their parts.


def written(folder: Path, text: str) -> Path:
    path = folder / "orders.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        "customer,date,amount\n7,2017-01-12,12.5\n",
        "ID,Date,Amount\n7,20170112,12.5\n",
        "\ufeffAmount;Customer ID;Order date\n12.5;7;2017-01-12T08:26\n",
        "id\tcustomer\tdate\tamount\n1\t7\t2017-01-12\t12.50\n\n",
    ],
)
def test_orders_are_read_by_the_names_of_the_columns(tmp_path, text):
    (row,) = read_orders(written(tmp_path, text))
    assert (row.customer, row.date, row.amount) == ("7", date(2017, 1, 12), Decimal("12.5"))


def test_rows_that_are_equal_are_orders_of_their_own(tmp_path):
    rows = read_orders(written(tmp_path, "ID,Date,Amount\n2,20170112,77\n2,20170112,77\n"))
    plan = Plan(rows)
    assert len({plan.reference(row) for row in rows}) == 2
    assert total(rows) == 154


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no column customer"),
        ("customer,date\nC1,2017-01-12\n", "no column amount"),
        ("customer,date,amount\n", "no orders"),
        ("customer,date,amount\nC1,2017-01-12,1\nC1,2017-13-12,1\n", "line 3"),
        ("customer,date,amount\nC1,2017-01-12,a lot\n", "line 2"),
        ("customer,date,amount\nC1,2017-01-12,-1\n", "no negative amount"),
        ("customer,date,amount\nC1,2017-01-12,NaN\n", "line 2"),
        ("customer,date,amount\nC1,2017-01-12\n", "line 2"),
    ],
)
def test_what_is_no_file_of_orders_is_refused_with_its_line(tmp_path, text, complaint):
    with pytest.raises(DemoError, match=complaint):
        read_orders(written(tmp_path, text))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(DemoError, match="Can't read the orders"):
        read_orders(tmp_path / "missing.csv")


def rows_of(customers: str) -> list[Row]:
    day = date(2026, 3, 2)
    return [Row(n + 2, name, day, Decimal(n + 1)) for n, name in enumerate(customers)]


def test_the_refused_card_is_that_of_a_customer_with_one_order():
    plan = Plan(rows_of("AABBBCDAAA"))
    assert plan.refused_customer == "C"
    assert plan.refused_count == 1
    assert plan.job_count == 29


def test_the_gateway_fails_for_a_customer_who_comes_after_the_kill():
    assert Plan(rows_of("CEAABBADAA")).failing_customer == "D"


@pytest.mark.parametrize("customers", ["A", "AA", "AB", "ABC", "AAB"])
def test_few_orders_still_have_a_part_each(customers):
    plan = Plan(rows_of(customers))
    assert 0 <= plan.hang_at < plan.kill_at <= len(plan.rows)
    assert plan.refused_count < len(plan.rows)
    assert plan.failing_customer != plan.refused_customer


# The books.


@pytest.fixture
def plan(db) -> Plan:
    """A run of two orders of which all is as it should be."""
    plan = Plan(rows_of("AA"))
    for row in plan.rows:
        reference = plan.reference(row)
        order = Order.objects.create(
            reference=reference,
            customer=row.customer,
            date=row.date,
            amount=row.amount,
            status=Order.Status.DONE,
        )
        charge = GatewayCharge.objects.create(
            key=reference, description=reference, customer=row.customer, amount=row.amount
        )
        Payment.objects.create(order=order, amount=row.amount, charge_id=charge.pk)
        Receipt.objects.create(order=order, text="")
    return plan


def wrong(plan: Plan, folder: Path) -> set[str]:
    entries = books.balance(plan, f"{plan.run}-too-large", folder)
    jobs_and_mails = {"Mails with a receipt", "Jobs finished"}
    return {entry.label.strip() for entry in entries if not entry.agrees} - jobs_and_mails


def test_the_books_of_a_good_run_agree(plan, tmp_path):
    assert wrong(plan, tmp_path) == set()


def test_the_books_leave_out_other_runs(plan, tmp_path):
    Order.objects.create(
        reference="demo-other-2", customer="A", date=date(2026, 3, 2), amount=Decimal(5)
    )
    assert wrong(plan, tmp_path) == set()


def test_the_books_show_a_second_charge(plan, tmp_path):
    reference = plan.reference(plan.rows[0])
    GatewayCharge.objects.create(
        key="another", description=reference, customer="A", amount=plan.rows[0].amount
    )
    assert wrong(plan, tmp_path) == {
        "Orders charged exactly once",
        "Charges in the gateway's own ledger",
        "their sum",
    }


def test_the_books_show_a_wrong_cent(plan, tmp_path):
    Payment.objects.filter(order__reference=plan.reference(plan.rows[0])).update(amount="1.01")
    assert wrong(plan, tmp_path) == {"Orders charged exactly once", "their sum"}


def test_the_books_show_a_lost_order(plan, tmp_path):
    Order.objects.filter(reference=plan.reference(plan.rows[0])).update(status="ACCEPTED")
    assert wrong(plan, tmp_path) == {"Orders lost"}


def test_the_books_show_a_receipt_that_was_not_written(plan, tmp_path):
    Receipt.objects.filter(order__reference=plan.reference(plan.rows[0])).delete()
    assert wrong(plan, tmp_path) == {"Receipts written, one for each paid order"}


def test_the_books_show_a_job_that_has_not_ended(plan, tmp_path):
    jobs.process_order.using(idempotency_key=plan.reference(plan.rows[0])).enqueue(1)
    assert wrong(plan, tmp_path) == {"Jobs unfinished"}


def test_the_books_show_what_an_order_that_was_rolled_back_left(plan, tmp_path):
    jobs.process_order.using(idempotency_key=f"{plan.run}-too-large").enqueue(1)
    assert "Rows of the order that was rolled back" in wrong(plan, tmp_path)


def test_books_that_do_not_agree_are_called_so(plan, capsys):
    Receipt.objects.all().delete()
    assert not telling.check_books(Story(sys.stdout), plan, f"{plan.run}-too-large")
    told = capsys.readouterr().out
    assert "WRONG" in told
    assert "The books do not agree" in told


# The terminal.


class Terminal:
    """Be a stream that says it is a terminal."""

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


def shown(monkeypatch, **environment: str) -> str:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal()
    story = Story(terminal)
    story.act("An act")
    progress = story.progress("done", 2)
    progress.show(1)
    progress.end()
    return terminal.text


def test_a_terminal_gets_colours_and_a_counter(monkeypatch):
    text = shown(monkeypatch, TERM="xterm")
    assert "\x1b[1m1  An act\x1b[0m" in text
    assert "\r   1 of 2 done" in text


def test_no_color_is_respected(monkeypatch):
    text = shown(monkeypatch, TERM="xterm", NO_COLOR="1")
    assert "\x1b[1m" not in text
    assert "\r   1 of 2 done" in text


def test_a_dumb_terminal_gets_plain_lines(monkeypatch):
    assert shown(monkeypatch, TERM="dumb") == "\n1  An act\n"


# The whole, with real processes.


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("postgresql://nobody@127.0.0.1:1/none", "The database does not answer"),
        ("sqlite:///:memory:", "DATABASE_URL names SQLite: it has to be PostgreSQL."),
    ],
)
def test_a_database_that_will_not_do_is_named_in_a_sentence(tmp_path, url, sentence):
    ended = subprocess.run(
        [sys.executable, "-m", "testproject.demo", "--once", "--logs", str(tmp_path)],
        cwd=CHECKOUT,
        env={**os.environ, "DATABASE_URL": url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert sentence in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.fixture
def database_url() -> Iterator[str]:
    """A database of its own on the suite's server; its name marks the processes that use it."""
    server = os.environ["DATABASE_URL"]
    name = f"demo_{uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


class Demo:
    """Play the demonstration with 30 orders in a process of its own."""

    def __init__(self, database_url: str, folder: Path, *flags: str) -> None:
        self.database_url = database_url
        path = folder / "orders.csv"
        lines = [f"{row.customer},{row.date},{row.amount}" for row in rows_of("AABACADBAB" * 3)]
        lines[3] = "E,2026-03-02,1000.01"
        lines[-1] = "F,2026-03-02,0.10"
        path.write_text("\n".join(["customer,date,amount", *lines]))
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "testproject.demo", "--orders", str(path)),
                *("--lease", "2", "--logs", str(folder / "logs"), *flags),
            ],
            cwd=CHECKOUT,
            env={**os.environ, "DATABASE_URL": database_url},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.told = ""

    def wait_for(self, text: str) -> str:
        """Read until a line has the text; return the line."""
        for line in self.process.stdout:
            self.told += line
            if text in line:
                return line
        pytest.fail(f"the demonstration never said {text!r}:\n{self.told}")

    def end(self) -> int:
        """Read the rest and return the exit code."""
        self.told += self.process.communicate(timeout=60)[0]
        return self.process.returncode

    def processes(self) -> list[int]:
        """Return the processes that have this run's database in their environment."""
        marker = urlsplit(self.database_url).path[1:].encode()
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and marker in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except (ProcessLookupError, PermissionError, FileNotFoundError):
                continue
        return found


@pytest.fixture
def demo(database_url, tmp_path) -> Iterator[Demo]:
    demo = Demo(database_url, tmp_path)
    yield demo
    demo.process.kill()
    demo.process.wait()
    demo.process.stdout.close()


def wait_for_exit(pid: int) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], 60)[0], f"process {pid} did not end"
    finally:
        os.close(handle)


def fact(told: str, label: str) -> str:
    (line,) = [line for line in told.splitlines() if line.split()[:1] == [label]]
    return line.split()[-1]


def log_in(url: str, user: str, password: str) -> str:
    """Log in to the admin as a person would and return the page of jobs."""
    jar = CookieJar()
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    with opener.open(url) as page:
        login = page.url
    token = next(cookie.value for cookie in jar if cookie.name == "csrftoken")
    form = {"username": user, "password": password, "csrfmiddlewaretoken": token}
    with opener.open(login, urlencode(form).encode()) as page:
        return page.read().decode()


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
def test_it_plays_stays_up_until_interrupted_leaves_nothing_running_and_plays_again(demo, tmp_path):
    demo.wait_for("Everything runs on")
    assert "The books agree" in demo.told
    assert "WRONG" not in demo.told
    assert "attempts recorded as lost" in " ".join(demo.told.split())
    assert demo.told.count("failed: the gateway answers 503") == 2
    assert "the card of customer E is refused" in demo.told
    said = " ".join(demo.told.split())
    steps = "charge, book, parcel-0, parcel-1, parcel-2, cooling-off, approval"
    assert re.search(rf"is approved, in \d attempts?: {steps}, approve\.", said)
    assert f"is paid back, in 2 attempts: {steps}, refund, unbook." in said
    page = log_in(*(fact(demo.told, label) for label in ("Admin", "User", "Password")))
    assert "charge_payment" in page
    assert demo.processes()
    demo.process.send_signal(signal.SIGINT)
    assert demo.end() == 0
    assert demo.processes() == []

    again = Demo(demo.database_url, tmp_path, "--once")
    assert again.end() == 0, again.told
    assert "The books agree" in again.told
    with psycopg.connect(demo.database_url) as connection:
        query = "SELECT count(*), sum(amount) FROM shop_payment"
        paid = 2 * (sum(range(1, 30)) - 4) + 2 * Decimal("0.10")
        assert connection.execute(query).fetchone() == (58, paid)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize(
    ("line", "number", "code"),
    [
        ("PostgreSQL", signal.SIGINT, 130),
        ("card gateway hangs", signal.SIGTERM, 143),
        ("Worker", signal.SIGKILL, -9),
    ],
)
def test_it_leaves_nothing_running_when_it_is_ended_in_the_middle(demo, line, number, code):
    demo.wait_for(line)
    running = demo.processes()
    demo.process.send_signal(number)
    assert demo.end() == code
    for pid in running:
        wait_for_exit(pid)
    assert demo.processes() == []


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
def test_it_ends_when_nobody_reads_on(demo):
    demo.wait_for("Tables")
    running = demo.processes()
    demo.process.stdout.close()
    for pid in running:
        wait_for_exit(pid)
    assert demo.process.wait() == 128 + signal.SIGPIPE
    assert demo.processes() == []
