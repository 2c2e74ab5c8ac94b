"""A server's TLS with a certificate that nobody vouches for."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest

COMMAND = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]


def self_signed_context(folder: Path) -> ssl.SSLContext:
    """What a server on localhost speaks TLS with; the test skips where there is no openssl."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    try:
        subprocess.run([*COMMAND, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl to make a certificate with")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context
