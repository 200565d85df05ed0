"""Where we refuse to connect to."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given, settings, strategies as st

from harn import InvalidOption, TriggerError
from harn.triggers.allowed_hosts import (
    Allowed,
    check_allowed,
    choose_address,
    is_host,
    is_public,
    read_url,
)

METADATA = [
    "169.254.169.254",
    "2852039166",
    "0xA9FEA9FE",
    "0xa9.0xfe.0xa9.0xfe",
    "0251.0376.0251.0376",
    "169.16689662",
    "169.254.43518",
    "[::ffff:169.254.169.254]",
    "[::ffff:a9fe:a9fe]",
    "[0:0:0:0:0:ffff:169.254.169.254]",
    "[64:ff9b::a9fe:a9fe]",
    "[2002:a9fe:a9fe::]",
]


@pytest.mark.parametrize("host", METADATA)
def test_S8_the_metadata_service_is_refused_in_every_spelling(host: str) -> None:
    with pytest.raises((InvalidOption, TriggerError)):
        url = read_url(f"http://{host}/latest/meta-data")
        choose_address(url, [url.host], Allowed())


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.0.1",
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
        "198.18.0.1",
        "192.0.2.1",
        "203.0.113.9",
        "168.63.129.16",
        "::",
        "::1",
        "fe80::1",
        "fc00::1",
        "fd12::1",
        "ff02::1",
        "::ffff:10.0.0.1",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "2001::1",
        "2001:db8::1",
        "3fff::1",
        "3fff:fff:ffff::1",
        "5f00::1",
        "fec0::1",
        "::127.0.0.1",
    ],
)
def test_S8_what_is_not_public_is_refused(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address", ["93.184.216.34", "1.1.1.1", "2606:4700:4700::1111", "::ffff:1.1.1.1"]
)
def test_the_internet_is_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "gopher://x/",
        "ftp://x/",
        "http://user:secret@host/",
        "http://host@evil/",
        "http:///x",
        "http://",
        "//host/",
        "http://host:0/",
        "http://host:99999/",
        "http://127.1/",
        "http://0/",
        "http://0x7f.1/",
        "http://[::1%25eth0]/",
        "http://host/#part",
        "http://ho st/",
        "http://host/\r\nX: y",
        "http://host\\@evil/",
        "http://\u2460\u2461\u2466.0.0.1/",
        "http://" + "a" * 3000,
        "javascript:alert(1)",
        "http://-x/",
        "http://x..y/",
    ],
)
def test_S8_an_odd_address_is_refused_and_never_echoed_with_its_password(url: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        read_url(url)

    assert "secret" not in str(refused.value)


def test_S8_one_private_answer_condemns_them_all() -> None:
    url = read_url("https://agents.example/a2a")

    with pytest.raises(TriggerError, match=r"10\.0\.0\.7.*not public"):
        choose_address(url, ["93.184.216.34", "10.0.0.7"], Allowed())


def test_the_operator_may_let_a_host_or_a_network_through() -> None:
    url = read_url("https://peer.internal:8080/")

    assert choose_address(url, ["10.0.0.7"], check_allowed(["peer.internal"])) == "10.0.0.7"
    assert choose_address(url, ["10.0.0.7"], check_allowed(["10.0.0.0/8"])) == "10.0.0.7"
    with pytest.raises(TriggerError):
        choose_address(url, ["10.0.0.7"], check_allowed(["192.168.0.0/16", "other.internal"]))


def test_a_name_without_an_address_is_an_error() -> None:
    with pytest.raises(TriggerError, match="no address"):
        choose_address(read_url("http://x.example/"), [], Allowed())


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=40))
def test_no_text_makes_reading_an_address_fail_otherwise(text: str) -> None:
    for spelled in (text, f"http://{text}", f"https://{text}/x"):
        try:
            assert is_host(read_url(spelled).host)
        except InvalidOption:
            pass
