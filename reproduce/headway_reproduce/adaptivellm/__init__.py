"""What the AdaptiveLLM paper measured, measured again; `setting.py` is what was fixed before the first run."""
