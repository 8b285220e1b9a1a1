"""What a trip that fails has booked is taken back, the last booking first."""

from django_durable import JobContext, JobFailed, PermanentFailure, step, workflow
from django_durable.models import Job
from examples.demo import say, wait_until, worker


def cancel_flight(ticket: str, to: str) -> None:
    say(f"cancelling {ticket}")


def cancel_hotel(room: str, to: str) -> None:
    say(f"cancelling {room}")


@step(compensate=cancel_flight)
def book_flight(to: str) -> str:
    say(f"booking a flight to {to}")
    return f"the flight to {to}"


@step(compensate=cancel_hotel)
def book_hotel(to: str) -> str:
    say(f"booking a hotel in {to}")
    return f"the hotel in {to}"


def rent_car(to: str) -> str:
    raise PermanentFailure(f"there is no car in {to}")


@workflow
def trip(context: JobContext, to: str) -> list[str]:
    flight = context.step("flight", book_flight, to)
    hotel = context.step("hotel", book_hotel, to)
    car = context.step("car", rent_car, to)
    return [flight, hotel, car]


def main() -> None:
    job = trip.enqueue("Lisbon")
    with worker():
        try:
            job.result(timeout=60)
        except JobFailed as error:
            say(f"the trip failed: {error.message}")
        undo = job.children.get()
        wait_until(lambda: Job.objects.get(pk=undo.pk).is_finished)
        for taken_back in undo.steps.order_by("ordinal"):
            say(f"{taken_back.kind} of {taken_back.name}: {taken_back.status}")
