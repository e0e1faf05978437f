from lxml import etree

from tests.demo import VARIABLE, journey


def test_from_a_nodes_sysfs_to_a_running_domain() -> None:
    titles: list[str] = []
    done = journey(lambda title, text: titles.append(title))
    assert done.inventory.count("example.com/bochs") == 2
    assert done.env == {VARIABLE: "0000:01:00.0,0000:41:00.0"}
    assert done.nodes == ("/dev/vfio/vfio", "/dev/vfio/8", "/dev/vfio/11")
    domain = etree.fromstring(done.xml)
    assert [alias.get("name") for alias in domain.iterfind("devices/hostdev/alias")] == ["ua-gpu-gpu1", "ua-gpu-gpu2"]
    assert done.hostdevs == (
        "INFO ua-gpu-gpu1: host 0000:01:00.0 -> guest 0000:01:00.0",
        "INFO companion: host 0000:01:00.1 -> guest 0000:01:00.1",
        "INFO ua-gpu-gpu2: host 0000:41:00.0 -> guest 0000:02:00.0",
        "INFO companion: host 0000:41:00.1 -> guest 0000:02:00.1",
    )
    assert done.older_hostdevs == done.hostdevs
    assert len(titles) == 6
