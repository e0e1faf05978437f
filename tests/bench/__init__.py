"""`make bench`: the figures of docs/figures.md. What counts is a ratio within one run, to something that stands
beside ours: machines differ, and so do two runs on one machine."""
