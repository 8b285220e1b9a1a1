"""Errors as texts: whatever the exception, they can be stored."""
# ruff: noqa: N818, TRY301 - these errors are thrown together for one test each

import asyncio
import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.utils.functional import lazy
from hypothesis import given
from hypothesis import strategies as st

from django_durable import exceptions, payloads
from django_durable.errortext import (
    MAX_CHAIN,
    MAX_MESSAGE,
    MAX_TRACEBACK,
    ErrorText,
    class_path,
    storable,
)


class PaymentError(Exception):
    class Declined(Exception):
        pass


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Silly(Exception):
    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        raise RuntimeError("no notes")


class Odd(str):
    __slots__ = ()


def raised(raising: Callable[[], Any]) -> ErrorText:
    try:
        raising()
    except BaseException as error:  # noqa: BLE001
        text = ErrorText.from_exception(error)
    for part in (text.error_class, text.message, text.traceback):
        assert type(part) is str
        assert "\0" not in part
        part.encode()
    assert len(text.message) <= MAX_MESSAGE
    assert len(text.traceback) <= MAX_TRACEBACK
    return text


def fail(error: BaseException) -> Callable[[], None]:
    def raising() -> None:
        raise error

    return raising


def test_error_has_class_message_and_traceback() -> None:
    text = raised(fail(PaymentError("card refused")))

    assert text.error_class == "tests.test_errortext.PaymentError"
    assert text.message == "card refused"
    assert text.traceback.startswith("Traceback (most recent call last):\n")
    assert ", in raising\n    raise error\n" in text.traceback
    assert text.traceback.endswith("\ntests.test_errortext.PaymentError: card refused\n")


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (ValueError, "ValueError"),
        (exceptions.JobTimeout, "JobTimeout"),
        (exceptions.LeaseLost, "LeaseLost"),
        (PaymentError.Declined, "tests.test_errortext.PaymentError.Declined"),
        (asyncio.QueueFull, "asyncio.queues.QueueFull"),
    ],
)
def test_class_is_named_with_its_module_unless_it_is_python_s_or_ours(
    kind: type, path: str
) -> None:
    assert class_path(kind) == path


def test_local_class_is_named_too() -> None:
    class Local(Exception):
        pass

    assert raised(fail(Local())).error_class.endswith("<locals>.Local")


def test_empty_message_stays_empty() -> None:
    text = raised(fail(ValueError()))

    assert text.message == ""
    assert text.traceback.endswith("\nValueError\n")


def test_characters_that_postgresql_can_t_store_are_replaced() -> None:
    text = raised(fail(ValueError("a\0b \udce9 \ud83d é 😀")))

    assert text.message == "a\ufffdb \ufffd \ufffd é 😀"
    assert "a\ufffdb" in text.traceback


@pytest.mark.django_db
def test_postgresql_stores_the_texts_of_the_worst_errors() -> None:
    for error in (ValueError("\0\ud800" * 100_000), Mute(), UnicodeError("\udce9")):
        text = raised(fail(error))
        with connection.cursor() as cursor:
            cursor.execute("SELECT %s::text, %s::text", [text.message, text.traceback])
            assert cursor.fetchone() == (text.message, text.traceback)


@given(st.text())
def test_any_text_is_made_storable(text: str) -> None:
    made = storable(text, 50)

    assert "\0" not in made
    made.encode()
    assert len(made) <= max(50, len(text))


def test_error_whose_str_raises_is_recorded_all_the_same() -> None:
    text = raised(fail(Mute()))

    assert text.error_class == "tests.test_errortext.Mute"
    assert text.message == "[no message: its __str__ raised RuntimeError]"
    assert ", in raising" in text.traceback


def test_error_whose_notes_raise_keeps_class_and_message() -> None:
    text = raised(fail(Silly("still here")))

    assert text.message == "still here"
    assert text.traceback == "[the traceback can't be shown: RuntimeError]"


def test_message_that_is_a_subclass_of_str_becomes_plain() -> None:
    class Speaking(Exception):
        def __str__(self) -> str:
            return Odd("well")

    assert raised(fail(Speaking())).message == "well"


def test_class_whose_name_can_t_be_read_is_recorded() -> None:
    class Meta(type):
        @property
        def __module__(cls) -> str:  # type: ignore[override]
            raise RuntimeError

    class Nameless(Exception, metaclass=Meta):
        pass

    assert raised(fail(Nameless("x"))).error_class == "[a class without a name]"


def test_long_message_is_cut_with_a_note() -> None:
    text = raised(fail(ValueError("x" * 5_000_000)))

    assert text.message.startswith("xxx")
    assert "4,990,000 of 5,000,000 characters left out" in text.message
    assert len(text.message) == MAX_MESSAGE


def test_long_traceback_keeps_its_head_and_its_tail() -> None:
    source = "\n".join(f"def f{n}():\n    f{n + 1}()  # {'x' * 300}" for n in range(350))
    namespace: dict[str, Any] = {"f350": fail(ValueError("the end"))}
    exec(compile(source, __file__, "exec"), namespace)  # noqa: S102

    text = raised(namespace["f0"])
    assert len(text.traceback) <= MAX_TRACEBACK
    assert text.traceback.startswith("Traceback (most recent call last):\n")
    assert text.traceback.endswith("\nValueError: the end\n")


def test_recursion_error_is_recorded_in_short() -> None:
    def again() -> None:
        again()

    def ping(left: int) -> None:
        pong(left)

    def pong(left: int) -> None:
        ping(left)

    text = raised(again)
    assert text.error_class == "RecursionError"
    assert "[Previous line repeated" in text.traceback
    assert "frames left out ...]" in raised(lambda: ping(1)).traceback


def test_causes_are_shown_from_the_first_to_the_last() -> None:
    def raising() -> None:
        try:
            try:
                raise KeyError("first")
            except KeyError:
                raise ValueError("second")  # noqa: B904
        except ValueError as error:
            raise PaymentError("third") from error

    order = [
        "KeyError: 'first'",
        "During handling of",
        "ValueError: second",
        "direct cause",
        "third",
    ]
    traceback = raised(raising).traceback
    assert [traceback.index(part) for part in order] == sorted(map(traceback.index, order))


def test_context_that_was_set_aside_is_left_out() -> None:
    def raising() -> None:
        try:
            raise KeyError("secret")
        except KeyError:
            raise ValueError("public") from None

    assert "secret" not in raised(raising).traceback


def test_chain_of_any_length_is_read_in_part() -> None:
    read: list[int] = []

    class Link(Exception):
        def __str__(self) -> str:
            read.append(self.args[0])
            return f"link {self.args[0]}"

    error = Link(0)
    for number in range(1, 20_000):
        later = Link(number)
        later.__cause__ = error
        error = later

    text = raised(fail(error))
    assert len(read) == MAX_CHAIN + 1
    assert text.traceback.startswith("[earlier exceptions of the chain are left out]")
    assert "link 19999\n" in text.traceback


def test_chain_that_goes_in_a_circle_ends() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first

    assert raised(fail(first)).traceback.count("ValueError: ") == 2


def test_group_shows_its_members_within_bounds() -> None:
    async def refuse(name: str) -> None:
        raise PaymentError(name)

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(refuse("one"))
            group.create_task(refuse("two"))

    text = raised(lambda: asyncio.run(both()))
    assert "  | tests.test_errortext.PaymentError: one\n" in text.traceback
    assert "  | tests.test_errortext.PaymentError: two\n" in text.traceback

    wide = raised(fail(ExceptionGroup("wide", [ValueError(n) for n in range(1000)])))
    assert "990 more left out" in wide.traceback
    deep: Exception = ValueError("core")
    for _ in range(500):
        deep = ExceptionGroup("deep", [deep])
    assert "nested too deep to show" in raised(fail(deep)).traceback


def test_notes_are_shown() -> None:
    error = ValueError("x")
    error.add_note("while charging order 7")

    assert raised(fail(error)).traceback.endswith("ValueError: x\nwhile charging order 7\n")


def test_frames_of_the_package_itself_are_left_out_at_the_top_only() -> None:
    boom = lazy(fail(PaymentError("inside")), str)
    with pytest.raises(PaymentError) as caught:
        payloads.encode(boom(), where="it", limit=None)
    assert "payloads/writing.py" in ErrorText.from_exception(caught.value).traceback
    within = caught.value.with_traceback(caught.tb.tb_next)
    traceback = ErrorText.from_exception(within).traceback
    assert "payloads/writing.py" not in traceback
    assert ", in raising" in traceback


def test_error_of_the_package_alone_keeps_its_frames() -> None:
    with pytest.raises(exceptions.PayloadDecodeError) as caught:
        payloads.decode("{")
    within = caught.value.with_traceback(caught.tb.tb_next)

    assert "payloads/reading.py" in ErrorText.from_exception(within).traceback


def test_system_exit_and_stops_are_recorded_like_any_error() -> None:
    assert raised(lambda: sys.exit(3)).error_class == "SystemExit"
    assert raised(fail(exceptions.CancelRequested("by ann"))).error_class == "CancelRequested"


def test_given_texts_are_made_storable() -> None:
    text = ErrorText.of("LeaseLost" + "x" * 500, "gone\0", "t" * 60_000)

    assert len(text.error_class) == 255
    assert text.message == "gone\ufffd"
    assert len(text.traceback) == MAX_TRACEBACK
    assert ErrorText.of("JobTimeout", "late") == ErrorText("JobTimeout", "late", "")


@pytest.mark.parametrize(
    "error",
    [
        exceptions.JobFailed("no", error_class="ValueError", traceback="..."),
        exceptions.JobCancelled("why"),
        exceptions.DuplicateJob("taken"),
        exceptions.PayloadError("no"),
        exceptions.RetryJob("later"),
        exceptions.RejectJob(),
        exceptions.CancelJob("enough"),
        exceptions.CancelRequested("by ann"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_exception_survives_pickling(error: BaseException) -> None:
    again = pickle.loads(pickle.dumps(error))  # noqa: S301

    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
