"""What people do by command beside the service: produce, verify, inspect, repair, skip, resend."""
