"""Settings of the ports, and the combinations that are allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from quarry_mq.server.front import TlsFiles
from quarry_mq.server.process.certificates import TlsPorts
from quarry_mq.server.settings.broker_settings import BrokerSettings, SettingsInvalid, load_settings

FILES = {"tls_certificate": "/tls.crt", "tls_key": "/tls.key"}


def problem(**network: object) -> str:
    with pytest.raises(SettingsInvalid) as caught:
        load_settings(None, {"network": network})
    text = str(caught.value)
    assert "\n" not in text
    return text


def fine(**network: object) -> BrokerSettings:
    return load_settings(None, {"network": network})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "[::1]", "localhost"])
def test_plain_text_is_for_this_machine(host: str) -> None:
    fine(listen=f"{host}:1", admin=f"{host}:2", http=f"{host}:3", console=f"{host}:4")


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.0.0.7", "[2001:db8::1]", "broker.example.com"])
@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("listen", 'tls = "required"'),
        ("admin", "admin_tls = true"),
        ("http", "http_tls = true"),
        ("console", "console_tls = true"),
    ],
)
def test_plain_text_for_others_has_to_be_asked_for(name: str, cure: str, host: str) -> None:
    address = f"{host}:8081"
    said = {"tls": "optional"} if name == "listen" else {}
    text = problem(**{name: address}, **said)
    assert text.startswith(f"network: {name} = {address} would accept plain text")
    assert cure in text
    assert f'plain_text = ["{name}"]' in text
    load_settings(None, {"network": {name: address, "plain_text": "everywhere"}, "security": {"open_admin": True}})
    load_settings(None, {"network": {name: address, "plain_text": [name]}, "security": {"open_admin": True}})
    others = [each for each in ("listen", "admin", "http", "console") if each != name]
    assert problem(**{name: address, "plain_text": others}, **said) == text


def test_the_ports_that_take_plain_text_are_a_list_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, value in (('["listen", "http"]', ["listen", "http"]), ("everywhere", "everywhere"), ("[]", [])):
        monkeypatch.setenv("QUARRY_NETWORK_PLAIN_TEXT", text)
        assert load_settings().network.plain_text == value
    for text in ("nowhere", '["admins"]'):
        monkeypatch.setenv("QUARRY_NETWORK_PLAIN_TEXT", text)
        with pytest.raises(SettingsInvalid, match=r"network\.plain_text"):
            load_settings()


@pytest.mark.parametrize("name", ["admin", "console"])
@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.0.0.7", "quarry.example.com"])
def test_nobody_is_let_in_from_elsewhere_without_being_asked(name: str, host: str) -> None:
    """Neither because plain text is taken everywhere nor because it is not."""
    for network in (
        {name: f"{host}:1", "plain_text": "everywhere"},
        {name: f"{host}:1", f"{name}_tls": True, **FILES},
    ):
        assert problem(**network).startswith(f"settings: network.{name} = {host}:1 would let anybody who can reach it")
        for security in ({"open_admin": True}, {"authentication": True}, {"admin_authentication": True}):
            settings = load_settings(None, {"network": network, "security": security})
            assert set(settings.open_to_everybody) == ({name} if "open_admin" in security else set())
        with pytest.raises(SettingsInvalid, match="would let anybody"):
            load_settings(
                None, {"network": network, "security": {"authentication": True, "admin_authentication": False}}
            )


def test_the_admin_port_may_be_for_operators_of_this_machine_and_for_members() -> None:
    security = {"admin_callers": "this-machine"}
    network = {"admin": "0.0.0.0:1", "plain_text": "everywhere"}
    assert load_settings(None, {"network": network, "security": security}).open_to_everybody == {}
    with pytest.raises(SettingsInvalid, match=r"network\.console = 0\.0\.0\.0:2 would let anybody"):
        load_settings(None, {"network": {**network, "console": "0.0.0.0:2"}, "security": security})


def test_certificates_say_who_administers() -> None:
    tls = {**FILES, "admin_tls": True, "admin_client_ca": "/admins.crt"}
    assert fine(admin="0.0.0.0:1", console="off", **tls).open_to_everybody == {}
    assert fine(admin="0.0.0.0:1", console="0.0.0.0:2", console_tls=True, **tls).open_to_everybody == {}
    assert "would let anybody" in problem(console="0.0.0.0:2", plain_text="everywhere", **tls)


def test_with_tls_every_address_may_be_used() -> None:
    everywhere = {"listen": "0.0.0.0:1", "admin": "0.0.0.0:2", "http": "0.0.0.0:3", "console": "0.0.0.0:4"}
    tls = {"tls": "required", "admin_tls": True, "http_tls": True, "console_tls": True}
    load_settings(None, {"network": {**everywhere, **FILES, **tls}, "security": {"open_admin": True}})
    fine(tls_listen="0.0.0.0:8443", **FILES)


@pytest.mark.parametrize(
    ("network", "chosen"),
    [
        ({}, "optional"),
        ({"listen": "127.8.9.10:1"}, "optional"),
        ({"listen": "0.0.0.0:1"}, "required"),
        ({"listen": "mq.example.com:1", "plain_text": ["http", "admin"]}, "required"),
        ({"listen": "0.0.0.0:1", "plain_text": ["listen"]}, "optional"),
        ({"listen": "[::]:1", "plain_text": "everywhere"}, "optional"),
        ({"tls_listen": "127.0.0.1:2"}, "off"),
        ({"tls_listen": "0.0.0.0:2", "listen": "0.0.0.0:1", "plain_text": ["listen"]}, "off"),
        ({"front": "grpcio"}, "off"),
        ({"front": "grpcio", "listen": "0.0.0.0:1"}, "required"),
    ],
)
def test_who_does_not_say_it_gets_tls_beside_plain_text_or_alone(network: dict[str, object], chosen: str) -> None:
    assert fine(**network).network.tls == chosen
    for said in ("off", "required"):
        if chosen != "required" or said == "required":
            assert fine(**network, tls=said).network.tls == said


def test_messaging_ports_need_no_certificate() -> None:
    for network in ({}, {"tls": "optional"}, {"tls": "required"}, {"tls": "off", "tls_listen": "[::1]:1"}):
        assert fine(**network).network.is_self_signed
        assert not fine(**network, **FILES).network.is_self_signed
    assert not fine(tls="off").network.is_self_signed


def test_optional_tls_is_plain_text_too() -> None:
    assert "would accept plain text" in problem(listen="0.0.0.0:1", tls="optional", **FILES)
    fine(listen="0.0.0.0:1", tls="optional", plain_text="everywhere", **FILES)


@pytest.mark.parametrize(
    "wanted",
    [
        {"admin_tls": True},
        {"http_tls": 1},
        {"console_tls": True},
    ],
)
def test_tls_of_other_ports_needs_a_certificate_and_its_key(wanted: dict[str, object]) -> None:
    (name,) = wanted
    assert problem(**wanted) == f"network: {name} needs tls_certificate and tls_key"


@pytest.mark.parametrize("wanted", [{}, {"tls": "off"}, {"tls": "required"}, {"admin_tls": True}])
def test_a_certificate_and_its_key_go_together(wanted: dict[str, object]) -> None:
    assert problem(**wanted, tls_certificate="/tls.crt") == "network: tls_certificate needs tls_key"
    assert problem(**wanted, tls_key="/tls.key") == "network: tls_key needs tls_certificate"


@pytest.mark.parametrize(
    ("given", "needed"),
    [
        ({"tls_advertise": "mq.example.com:1", "tls": "required"}, "tls_advertise needs tls_listen"),
        ({"tls_client_ca": "/ca.crt", "admin_tls": True, "tls": "off"}, "tls_client_ca needs tls or tls_listen"),
        ({"admin_client_ca": "/ca.crt", "tls": "required"}, "admin_client_ca needs admin_tls"),
        ({"tls_client_certificate": "optional", "tls": "required"}, "tls_client_certificate needs tls_client_ca"),
    ],
)
def test_what_would_do_nothing_is_refused(given: dict[str, object], needed: str) -> None:
    assert problem(**given, **FILES) == f"network: {needed}"


def test_the_grpcio_front_has_no_optional_tls() -> None:
    assert problem(front="grpcio", tls="optional", **FILES) == 'network: tls = "optional" needs front = "h2"'
    given = {"front": "grpcio", "tls": "required", "tls_client_ca": "/ca.crt", **FILES}
    assert (
        problem(**given, tls_client_certificate="optional")
        == 'network: tls_client_certificate = "optional" needs front = "h2"'
    )
    fine(**given)


def test_each_port_has_its_own_authority() -> None:
    given = {"tls": "optional", "admin_tls": True, "http_tls": True, "console_tls": True, **FILES}
    ports = TlsPorts.of(fine(**given, tls_client_ca="/clients.crt", admin_client_ca="/admins.crt"))
    certificate, key = Path("/tls.crt"), Path("/tls.key")
    assert ports.messaging == TlsFiles(certificate, key, Path("/clients.crt"))
    assert ports.admin == TlsFiles(certificate, key, Path("/admins.crt"))
    assert ports.http == TlsFiles(certificate, key, protocol="http/1.1")
    assert ports.console == TlsFiles(certificate, key, Path("/admins.crt"), protocol="http/1.1")
    assert TlsPorts.of(fine(**FILES)) == (TlsFiles(certificate, key), None, None, None)
    assert TlsPorts.of(fine(**FILES, tls="off")) == (None, None, None, None)


def test_the_self_signed_certificate_lies_in_the_store_or_where_it_is_said() -> None:
    store = {"directory": "/data"}
    folder = Path("/data/tls")
    settings = load_settings(None, {"store": store, "network": {"tls_client_ca": "/clients.crt"}})
    expected = TlsFiles(folder / "certificate.pem", folder / "key.pem", Path("/clients.crt"))
    assert TlsPorts.of(settings) == (expected, None, None, None)
    settings = load_settings(None, {"store": store, "network": {"tls_directory": "/etc/quarry/tls"}})
    assert TlsPorts.of(settings).messaging == TlsFiles(
        Path("/etc/quarry/tls/certificate.pem"), Path("/etc/quarry/tls/key.pem")
    )
    assert TlsPorts.of(load_settings(None, {"store": store, "network": {"tls": "off"}})) == (None, None, None, None)


def test_the_console_can_be_off() -> None:
    assert fine().network.console_address == "127.0.0.1:8083"
    assert fine(console="off").network.console_address is None
    assert problem(console="on").startswith("network.console: must be host:port")


@pytest.mark.parametrize("address", ["unix:8082", "unix-abstract:1", "vsock:1"])
def test_what_grpc_takes_for_another_kind_of_socket_is_no_host(address: str) -> None:
    assert "must be host:port" in problem(admin=address, plain_text="everywhere")


def test_the_console_is_no_way_around_client_certificates() -> None:
    """One that is not asked for stays away by itself."""
    given = {"admin_tls": True, "admin_client_ca": "/ca.crt", **FILES}
    assert "the console would require nothing" in problem(**given, console="127.0.0.1:1")
    assert fine(**given).console_goes_around
    assert not fine(**given, console="off").network.console_address
    assert not fine(**given, console="127.0.0.1:1", console_tls=True).console_goes_around
    assert not load_settings(
        None, {"network": {**given, "console": "127.0.0.1:1"}, "security": {"admin_authentication": True}}
    ).console_goes_around


def test_slaves_need_the_remoting_protocol_and_a_network_that_is_trusted() -> None:
    fine(rocketmq_ha="127.0.0.1:10912")
    assert 'plain_text = ["rocketmq_ha"]' in problem(rocketmq_ha="0.0.0.0:10912")
    assert fine(rocketmq_ha="0.0.0.0:10912", plain_text=["rocketmq_ha"]).network.rocketmq_ha == "0.0.0.0:10912"
    off = {"listen": "off", "names_listen": "off"}
    with pytest.raises(SettingsInvalid, match="needs remoting"):
        load_settings(None, {"network": {"rocketmq_ha": "127.0.0.1:10912"}, "remoting": off})
