"""A small shop on durable jobs: the demonstration, and the example to read.

An order comes in by HTTP (`views`), is stored together with the job that will see to it (`orders`),
and goes through three jobs (`jobs`): accept it, charge the card, send the receipt. The card's
`gateway` is a stand-in for a service elsewhere, which can refuse, fail and hang.
"""
