"""The transcript as the agent gives it, read strictly: what is missing or of another type is an error with its name.

    protocol      1
    started       seconds since the epoch;  seconds: how long the probes took
    health, server_info, models             replies: status, seconds, body, error
    alone, chat, json, repeat               answers
    together      groups: name, how (batch: one POST; threads: requests in flight at once), answers
    processes     one a process of the server: pid, name, tree (first folder of its PYTHONPATH, links resolved; or null)
    port          number, owner (pid or null), ours (the owner is one of our processes)
    log           bytes, lines, matches (line, text) of the plan's signatures, tail (the last lines)
    restarts      how often the supervisor had to start the server again

The first half is made by the agent's `probe.run`, `log` by `probe.scan_log`; the agent adds the rest.
"""
