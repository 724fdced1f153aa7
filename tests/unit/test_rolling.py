"""What differs between two files, and ports for a second instance beside the first."""

import yaml

from workers.expand import parse_workers
from workers.instances import PortPool
from workers.portplan import clashes
from workers.rolling import changes, moved, only_timing


def parsed(*instances):
    rest = {"model_path": "/m", "served_name": "tiny", "pool": "p", "device": "0", "kv_bytes": "1GiB"}
    return parse_workers(yaml.safe_dump({"instances": [rest | one for one in instances]}))


A, B, C = ({"name": name, "port": port} for name, port in (("a", 39001), ("b", 39002), ("c", 39003)))


def by_name(file):
    return {one.name: one for one in file.instances}


def test_changes_are_leave_then_change_then_come():
    wanted = parsed(C, B | {"max_num_seqs": 3})
    found = list(changes(by_name(parsed(A, B)), wanted))
    assert [(change.name, change.spec) for change in found] == [
        ("a", None),
        ("b", wanted.instance("b")),
        ("c", wanted.instance("c")),
    ]
    assert list(changes(by_name(parsed(A)), parsed(A))) == []


def test_timing_is_not_for_engines():
    one = parsed(A).instances[0]
    assert only_timing(one, parsed(A | {"drain_timeout_s": 1, "warmup_prompts": ["x"]}).instances[0])
    assert not only_timing(one, parsed(A | {"max_num_seqs": 1}).instances[0])


def test_a_second_one_gets_ports_of_its_own():
    full = A | {"debug_port": 39101, "agent_port": 39102, "other_ports": {"x": 39103}}
    one = parsed(full).instances[0]
    beside = moved(one, [one], PortPool(first=39001, internal_first=41000))
    assert clashes([one, beside.model_copy(update={"name": "a:2"})]) == []
    assert beside.internal_ports.count == one.internal_ports.count
    assert beside.model_path == one.model_path


def test_ports_that_nobody_has_stay():
    one = parsed(A).instances[0]
    other = parsed(A | {"port": 39500, "agent_port": 39501, "internal_ports": {"first": 45000}}).instances[0]
    assert moved(other, [one], PortPool()) == other


def test_without_a_port_there_is_no_second_one():
    one = parsed(A | {"port": 65535}).instances[0]
    assert moved(one, [one], PortPool(first=65535)) is None
