"""Files of other tools, turned into manifests, with an honest report of what did not fit."""
