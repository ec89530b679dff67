"""``vime doctor``: what of this machine and this environment would keep a run from working, a line a finding.

A check is a function from a :class:`~vime_cli.doctor.context.DoctorContext` (what the user asked about) to findings.
:mod:`~vime_cli.doctor.doctor` runs the checks one after another, each with a deadline and so that one which fails is
itself a finding. Whatever imports torch, vLLM, Ray or Megatron runs in a process of its own
(:mod:`~vime_cli.doctor.worker`), so doctor works where they cannot be imported, and where they are not installed.
"""
