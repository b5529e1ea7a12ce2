"""The policy of a link: what is sent next, and when. Without I/O and clocks; time is an argument.

``PolicyRules`` (``rules.py``) are what an operator sets. ``SendPolicy`` (``send_policy.py``) says when data may be
sent: not while the link is paused, its ``budget`` (``budget.py``) is used up, ``rate`` or ``every`` (``pacing.py``)
make it wait, or a ``schedule`` (``schedule.py``) shuts the stream. ``LaneChoice`` (``lane_choice.py``) says which lane
and record of one connection is read next, by ``order`` and ``priorities``; lanes take turns in ``FairTurns``
(``fair_turns.py``).
"""
