"""`make demo`: the shop at work, told on the terminal, with a worker that is killed in the middle.

__main__      the command line, and how every way out leaves nothing behind
acts          the story, act by act
stage         what it needs: tables, a user for the admin, the web server, the workers
orders        the CSV, and the part that each of its rows plays
client        sends the orders
parcels       two orders that workflows see through
books         checks in the tables, by SQL, that everything happened once
processes     starts, finds, kills and stops processes
interrupts    Ctrl-C and the like, heard where it is safe to stop
story         the terminal
"""


class DemoError(Exception):
    """The demonstration can't go on; the text says why, for people."""
