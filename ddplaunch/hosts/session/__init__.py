"""One ssh session per host: frames, links, the facts, the job."""
