"""What happened to each request: written down as it happens (`trail`, `track`, `step_log`, `reasons`), and told when
somebody asks (`story`, `telling`, `slack`, `explanation`).
"""
