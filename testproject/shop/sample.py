"""Write the sample of orders: `python -m testproject.shop.sample > data/orders.csv`.

The same at every run. Customers are codes; some order often, many once, and some order the very
same thing twice on one day, which makes two orders.
"""

import random
from datetime import date, timedelta

SEED = 2026
ORDERS = 200
REPEATED_EVERY = 40


def sample() -> list[str]:
    """Return the lines of the file."""
    draw = random.Random(SEED)  # noqa: S311
    day = date(2026, 3, 2)
    lines = ["customer,date,amount"]
    while len(lines) <= ORDERS:
        day += timedelta(days=draw.choice((0, 0, 0, 1, 1, 3)))
        customer = int(draw.paretovariate(0.7)) % 97 + 1
        cents = int(100 * draw.lognormvariate(3.3, 0.9)) + 95
        lines.append(f"C{customer:03},{day},{cents // 100}.{cents % 100:02}")
        if len(lines) % REPEATED_EVERY == 0:
            lines.append(lines[-1])
    return lines[: ORDERS + 1]


if __name__ == "__main__":
    print("\n".join(sample()))
