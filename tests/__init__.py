"""The harness's own tests: generators reach, failures shrink, planted faults are named."""
