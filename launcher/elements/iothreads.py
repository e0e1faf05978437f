"""<iothreads>, and in a <driver> which of them serve it."""

from lxml.builder import E
from lxml.etree import _Element as Element


def iothreads(count: int) -> list[Element]:
    return [E.iothreads(str(count))] if count else []


def serve(driver: Element, threads: tuple[int, ...]) -> None:
    """Say in a <driver> which threads serve it; nothing where it has none."""
    if len(threads) == 1:
        driver.set("iothread", str(threads[0]))
    elif threads:
        driver.append(E.iothreads(*(E.iothread(id=str(number)) for number in threads)))
