"""Links whose reads ask over the other direction, in flits with headers, by pencil and paper."""

import pytest

from cxlemu.errors import ConfigError
from cxlemu.topology import Topology
from tests.helpers.fabric_helpers import LOAD_NS, ends, fabric, read, simulated, write

LINES = 64  # of 64 B: 85 B of a link each, as on CXL 2.0, and 17 B for the request of one that is read
PORT = ", flit_bytes: 85, flit_payload_bytes: 64, request_bytes: 17"


def with_requests(up: str = PORT) -> Topology:
    return fabric(hosts=1, cards=2, read=1000, write=1000, total=2000, host_link=17, card_link=1000, up=up)


def test_requests_take_their_part_of_the_other_direction() -> None:
    """4096 B are 5440 B of the link, 320 ns, and 64 ns of requests, behind which the write comes."""
    topology = with_requests().model_copy(
        update={"hosts": with_requests().hosts.model_copy(update={"ranks_per_host": 2})}
    )
    nbytes, data_ns, asked_ns = 64 * LINES, 85 * LINES // 17, 17 * LINES // 17
    first, second = ends(simulated(topology, [[[read(0, nbytes)]], [[write(1, nbytes)]]]))
    assert (first, second) == (data_ns + LOAD_NS, asked_ns + data_ns)
    assert ends(simulated(topology, [[[write(0, nbytes)]], [[read(1, nbytes)]]])) == [data_ns, data_ns + LOAD_NS]


def test_requests_do_not_wait_for_what_goes_their_way() -> None:
    topology = with_requests()
    nbytes, data_ns = 64 * LINES, 85 * LINES // 17
    (end,) = ends(simulated(topology, [[[write(0, nbytes)], [read(1, nbytes)]]]))
    assert end == data_ns + LOAD_NS


def test_a_link_without_flits_has_no_requests() -> None:
    with pytest.raises(ConfigError, match="flit_bytes is missing: request_bytes is the size of a flit's request"):
        with_requests(", request_bytes: 17")
