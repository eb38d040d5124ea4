"""What people do by command, apart from running the service: produce, verify, inspect, repair, skip, resend."""
