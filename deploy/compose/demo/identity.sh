# Sourced by those who need a certificate: `certified site north`, `certified operator operator`.
# The key is made in the caller's own volume and stays there. Only the request and, once the CA has signed it, the
# certificate pass through /exchange; neither is secret. Whoever has a certificate already goes straight on.
certified() {
    home=$FEDELMY_STATE/identity
    if [ -e "$home/certificate.pem" ]; then
        return
    fi
    trap 'exit 143' TERM INT # a shell that is process 1 would not end while it waits
    if [ ! -e "$home/key.pem" ]; then
        fedelmy-node identity init "--$1" "$2"
    fi
    cp "$home/request.csr" "/exchange/.$2"
    mv "/exchange/.$2" "/exchange/$2.$1.csr" # whole, or not there
    until [ -e "/exchange/$2.$1.pem" ]; do
        sleep 0.2
    done
    fedelmy-node identity install "/exchange/$2.$1.pem"
    trap - TERM INT
}
