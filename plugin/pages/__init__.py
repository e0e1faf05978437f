"""A node as a page for a browser, and as a picture: functions of the snapshot."""
