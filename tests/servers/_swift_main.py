"""Makes Swift's rings, or is one of its servers. Run by the Python that Swift is installed for, not by ours.

_swift_main.py FOLDER rings [SERVER PORT]...
_swift_main.py FOLDER {proxy,account,container,object}
"""

import sys

from swift.common import utils
from swift.common.ring import RingBuilder
from swift.common.wsgi import run_wsgi
from swift.obj.server import global_conf_callback


def make_rings(folder, servers):
    """What tells the proxy which server is where: here a disk each. Otherwise nine runs of a command."""
    for name, port in zip(servers[::2], servers[1::2], strict=True):
        builder = RingBuilder(part_power=1, replicas=1, min_part_hours=0)
        place = {"region": 1, "zone": 1, "ip": "127.0.0.1", "port": int(port), "device": "disk"}
        builder.add_dev({**place, "weight": 1.0})
        builder.rebalance()
        builder.get_ring().save(f"{folder}/{name}.ring.gz")


def serve(folder, name):
    """What the program ``swift-NAME-server`` does."""
    more = {"global_conf_callback": global_conf_callback} if name == "object" else {}
    return run_wsgi(f"{folder}/{name}.conf", f"{name}-server", verbose=True, **more)


if __name__ == "__main__":
    folder, name, *rest = sys.argv[1:]
    # Otherwise in /etc, where it would belong to a Swift of the machine's own.
    utils.SWIFT_CONF_FILE = f"{folder}/swift.conf"
    sys.exit(make_rings(folder, rest) if name == "rings" else serve(folder, name))
