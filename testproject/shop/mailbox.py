"""Where mail ends here: a file for each message."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from django.core.mail import EmailMessage
from django.core.mail.backends import filebased


class EmailBackend(filebased.EmailBackend):
    """Write each message to a file that is called after its Message-ID.

    A message that is sent again, by a job that is tried again, takes the place of its first copy:
    a good mail service drops it in the same way.
    """

    def send_messages(self, email_messages: Sequence[EmailMessage]) -> int:
        """Write the messages, each as a whole or not at all."""
        folder = Path(self.file_path)
        for email in email_messages:
            message = email.message()
            name = quote(str(message["Message-ID"]).strip("<>"), safe="@")
            unfinished = folder / f".{name}.new"
            unfinished.write_bytes(message.as_bytes())
            unfinished.rename(folder / f"{name}.eml")
        return len(email_messages)
