"""Ids that sort by the moment they were made."""

import time

from django_durable.uuid7 import uuid7, uuid7s


def test_ids_rise_within_a_process_singly_and_in_bulk() -> None:
    made = [uuid7(), *uuid7s(3000), uuid7(), *uuid7s(2), uuid7()]

    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert {(each.version, each.variant) for each in made} == {(7, "specified in RFC 4122")}


def test_an_id_begins_with_the_millisecond() -> None:
    before = time.time_ns() // 1_000_000
    made = uuid7()

    assert 0 <= (made.int >> 80) - before < 1000
