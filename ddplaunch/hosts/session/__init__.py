"""ssh sessions with many hosts, one each.

The launcher's side, from the wire up: `links` (sessions), `fan_out` (begins them), `collect` (facts, a place to meet),
`start_hosts` (a launch), `each_host` (a run's hosts). A host's side: `ddplaunch.cli.hosts.serve`, `answers` (before a
launch), `job` (the launch). What goes over the wire are messages of `ddplaunch.hosts.json_lines`.
"""
