"""Checks of certificates for hosts."""

from __future__ import annotations

import trustme

from mandor.lib.certificate_check import check_certificate

CA = trustme.CA()


def pair(*names: str) -> tuple[str, str]:
    issued = CA.issue_cert(*names)
    return b"".join(each.bytes() for each in issued.cert_chain_pems).decode(), issued.private_key_pem.bytes().decode()


def test_a_certificate_fits_its_hosts_only() -> None:
    chain, key = pair("shop.test", "*.wild.test")
    assert check_certificate(chain, key, "shop.test").reason == ""
    assert check_certificate(chain, key, "").not_after > 0
    assert check_certificate(chain, key, "a.wild.test").reason == ""
    assert check_certificate(chain, key, "*.wild.test").reason == ""
    for host in ("other.test", "a.b.wild.test", "wild.test", "*.shop.test"):
        found = check_certificate(chain, key, host)
        assert (found.reason, found.problem) == (
            "HostMismatch",
            f"the certificate is for shop.test, *.wild.test, not for {host}",
        )


def test_a_text_that_is_no_certificate_and_a_key_of_another_one_are_named() -> None:
    chain, key = pair("shop.test")
    assert check_certificate("nonsense", key, "shop.test").reason == "CertificateInvalid"
    assert check_certificate(chain, "nonsense", "shop.test").reason == "KeyInvalid"
    assert (
        check_certificate(chain, pair("shop.test")[1], "shop.test").problem == "`tls.key` does not belong to `tls.crt`"
    )
