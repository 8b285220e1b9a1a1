"""Which refusals of the database end a worker that starts, and which it waits out."""

import pytest
from django.core.management.base import CommandError
from django.db import OperationalError

from django_durable.worker import startup

FAILED = 'connection failed: connection to server at "127.0.0.1", port 5432 failed: FATAL:  '


def come_up(text: str) -> int:
    """Meet the refusal once, and return how often the database was asked."""
    asked: list[str] = []

    def look() -> int:
        asked.append(text)
        if len(asked) == 1:
            raise OperationalError(FAILED + text)
        return len(asked)

    return startup._once_it_answers(look)


@pytest.mark.parametrize(
    "text",
    [
        "terminating connection due to administrator command",
        "terminating connection because of crash of another server process",
        "the database system is starting up",
        "the database system is not yet accepting connections",
        "sorry, too many clients already",
        'too many connections for role "app"',
        'database "app" is not currently accepting connections',
        "server login has been failing, try again later (server_login_retry)",
        "die Verbindung wird auf Anweisung des Verwalters geschlossen",
    ],
)
def test_what_passes_is_waited_out(text: str) -> None:
    assert come_up(text) == 2


@pytest.mark.parametrize(
    "text",
    [
        'password authentication failed for user "app"',
        'Peer authentication failed for user "app"',
        "SASL authentication failed",
        'role "app" does not exist',
        'role "app" is not permitted to log in',
        'database "app" does not exist',
        'no pg_hba.conf entry for host "127.0.0.1", user "app", database "app", no encryption',
        'permission denied for database "app"',
        "no such database: app",
    ],
)
def test_what_waiting_cannot_mend_ends_the_command(text: str) -> None:
    with pytest.raises(CommandError) as caught:
        come_up(text)
    assert text in str(caught.value)
