"""The service: Faust apps that mill raw text into token blocks and append them to segments."""
