"""Four papers repeated: their experiments on Headway, their numbers beside ours."""
