"""ssh sessions with many hosts, one for each host.

The launcher's side, from the wire up: `links` (sessions), `fan_out` (begins them), `collect` (facts, an address to meet
at), `start_hosts` (a launch), `each_host` (a run's hosts). A host's side: `ddplaunch.cli.hosts.serve`, `answers`
(before a launch), `job` (the launch). Both exchange messages of `ddplaunch.hosts.json_lines`.
"""
