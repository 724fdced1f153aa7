"""URLs of the ways in which Redis is run."""

import pytest
from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster

from workers.redis_client import (
    FAILURES,
    TIMEOUT_S,
    check_url,
    close_client,
    kind_of,
    make_client,
    parse_target,
    why_of,
)


def test_urls_with_several_nodes_are_taken_apart():
    target = parse_target(
        "redis+sentinel://user:p%40ss@a:1,b,[::1]:3/mymaster/2?ssl=true&ssl_ca_certs=/x&sentinel_password=s"
    )
    assert target.nodes == (("a", 1), ("b", 26379), ("::1", 3))
    assert target.service == "mymaster"
    assert target.options == {"ssl": True, "ssl_ca_certs": "/x", "username": "user", "password": "p@ss", "db": 2}
    assert target.sentinel == {"password": "s", "ssl": True, "ssl_ca_certs": "/x"}
    assert parse_target("redis+cluster://a:1,b/0").nodes == (("a", 1), ("b", 6379))
    assert "p@ss" not in repr(target)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://x", "must be a URL that begins with redis://, .*redis\\+cluster://$"),
        ("redis+sentinel://a:1", "service's name"),
        ("redis+sentinel://a:1/m/x", "number of a database"),
        ("redis+cluster://a:1/3", "one database only"),
        ("redis+cluster://a:b", "not a node"),
        ("redis+cluster://a:70000", "not a node"),
        ("redis+cluster://", "not a node"),
        ("redis+cluster://a?retry=1", "not known"),
        ("redis+cluster://" + ",".join("a" * 99), "at most"),
        ("redis://h:x", "x"),
    ],
)
def test_what_is_wrong_is_said(url, told):
    with pytest.raises(ValueError, match=told):
        check_url(url)


@pytest.mark.parametrize(
    "url",
    ["redis://u:s3cret/x@h:6379", "redis://u:s3cret@h:s3cret", "redis+sentinel://s3@cret"],
)
def test_nothing_of_a_password_is_told(url):
    with pytest.raises(ValueError, match="is no URL of Redis") as caught:
        check_url(url)
    assert "s3" not in str(caught.value)
    assert caught.value.__suppress_context__


async def test_every_client_has_our_timeouts_and_no_retries():
    for url in ("redis://h/0", "rediss://h", "unix:///s", "redis+sentinel://h/m", "redis+cluster://h"):
        check_url(url)
        client = make_client(url)
        if isinstance(client, RedisCluster):
            assert client.connection_kwargs["socket_timeout"] == TIMEOUT_S
            assert client.connection_kwargs["socket_connect_timeout"] == TIMEOUT_S
        else:
            assert isinstance(client, Redis)
            settings = client.connection_pool.connection_kwargs
            assert settings["socket_timeout"] == TIMEOUT_S
            assert settings["retry"].get_retries() == 0


async def test_a_cluster_without_a_reachable_node_is_a_failure_like_others():
    """redis-py's exception for it is none of its `RedisError`s."""
    client = make_client("redis+cluster://127.0.0.1:1")
    with pytest.raises(FAILURES) as caught:
        await client.ping()
    assert isinstance(caught.value, exceptions.RedisClusterException)
    assert kind_of(caught.value) == "connection"
    await close_client(client)


def test_ones_own_bound_of_connections_is_told_as_what_it_comes_from():
    """A server that stands still keeps every connection waiting; the next operation is refused one by the client."""
    error = exceptions.MaxConnectionsError("Too many connections")
    assert kind_of(error) == "timeout"
    assert why_of(error) == "timeout: no answer on any of this process's connections"
    assert why_of(exceptions.ConnectionError("refused")) == "connection: refused"
    assert why_of(TimeoutError()) == "timeout"
