"""Wait for each job whose id comes on standard input, and print when its result was there."""

import sys
import time

import django


def main() -> None:
    """Answer each line with seconds since the epoch, which the database's clock counts too."""
    django.setup()
    from django_durable.models import Job

    for line in sys.stdin:
        Job.objects.get(pk=line.strip()).result(timeout=60)
        print(repr(time.time()), flush=True)


if __name__ == "__main__":
    main()
