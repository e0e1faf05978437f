"""gpu-launcher schema."""

import json

from launcher.commands.answers import print_text
from launcher.schema import json_schema


def schema() -> None:
    """Print the JSON schema of the manifests that are taken, for editors."""
    print_text(json.dumps(json_schema(), indent=2) + "\n")
