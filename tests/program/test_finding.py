from program.finding import Finding, worst, worst_first
from program.problem import Problem, Severity

LOW = Finding(Severity.WARNING, Problem("the container's CPU limit", "is 1 CPUs", "raise it"))
HIGH = Finding(Severity.ERROR, Problem("gpu 'gpu1'", "0000:01:00.0 is bound to nvidia", "bind it to vfio-pci"))


def test_the_worst_comes_first_and_each_once() -> None:
    assert worst_first([LOW, HIGH, LOW]) == (HIGH, LOW)
    assert (worst([LOW, HIGH]), worst([LOW]), worst([])) == (Severity.ERROR, Severity.WARNING, Severity.OK)
