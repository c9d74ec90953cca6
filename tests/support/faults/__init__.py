"""The fault lab: federations of real processes that are killed, stopped, damaged and cut off, by a seed.

The rule that it checks: the end equals that of an undisturbed run bit for bit, or somebody refuses with a reason. In
`stale`, where the end depends on who was away, both ends must remember the same instead. Never a silent third.

`cases` are the modes of a federation, `participant` and `federation` its processes, `proxy` the lines between them,
`damage` is what happens to files. `process_faults`, `line_faults` and `disk_faults` are listed in `kinds`; `scenario`
plays some of them by a seed, and `ends` compares.
"""
