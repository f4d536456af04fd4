import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.security.MessageDigest;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.Iterator;
import java.util.Random;

/** Echo servers and clients: a selector with channels, and blocking streams with threads. */
public class Echo {
    static final int BULK = Integer.getInteger("bulk", 4_000_000);
    static final String ADDRESS = System.getProperty("address", "127.0.0.1");

    public static void main(String[] args) throws Exception {
        int port = Integer.parseInt(args[1]);
        switch (args[0]) {
            case "nio-server" -> selectorServer(port);
            case "blocking-server" -> blockingServer(port);
            case "nio-client" -> channelClient(port, false);
            case "nio-connected-client" -> channelClient(port, true);
            case "blocking-client" -> streamClient(port);
            default -> throw new IllegalArgumentException(args[0]);
        }
    }

    static void selectorServer(int port) throws Exception {
        ServerSocketChannel server = ServerSocketChannel.open();
        server.bind(new InetSocketAddress(ADDRESS, port));
        server.configureBlocking(false);
        Selector selector = Selector.open();
        server.register(selector, SelectionKey.OP_ACCEPT);
        while (true) {
            selector.select();
            Iterator<SelectionKey> ready = selector.selectedKeys().iterator();
            while (ready.hasNext()) {
                SelectionKey key = ready.next();
                ready.remove();
                if (key.isAcceptable()) {
                    SocketChannel channel = server.accept();
                    channel.configureBlocking(false);
                    channel.register(selector, SelectionKey.OP_READ, ByteBuffer.allocateDirect(65536));
                } else {
                    serve(key);
                }
            }
        }
    }

    /** Reads into the connection's buffer and writes from it; interest follows what is pending. */
    static void serve(SelectionKey key) throws Exception {
        SocketChannel channel = (SocketChannel) key.channel();
        ByteBuffer buffer = (ByteBuffer) key.attachment();
        if (key.isReadable() && channel.read(buffer) < 0) {
            channel.close();
            return;
        }
        buffer.flip();
        channel.write(buffer);
        buffer.compact();
        int interest = buffer.position() > 0 ? SelectionKey.OP_WRITE : 0;
        key.interestOps(interest | (buffer.hasRemaining() ? SelectionKey.OP_READ : 0));
    }

    static void blockingServer(int port) throws Exception {
        ServerSocket server = new ServerSocket();
        server.bind(new InetSocketAddress(ADDRESS, port));
        while (true) {
            Socket socket = server.accept();
            Thread thread = new Thread(() -> {
                try (socket) {
                    byte[] buffer = new byte[65536];
                    InputStream in = socket.getInputStream();
                    OutputStream out = socket.getOutputStream();
                    for (int n = in.read(buffer); n >= 0; n = in.read(buffer)) {
                        out.write(buffer, 0, n);
                    }
                } catch (Exception e) {
                    e.printStackTrace();
                }
            });
            thread.setDaemon(true);
            thread.start();
        }
    }

    static void streamClient(int port) throws Exception {
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        for (int k = 0; k < 3; k++) {
            try (Socket socket = new Socket(ADDRESS, port)) {
                socket.setTcpNoDelay(true);
                Random random = new Random(k);
                for (int i = 0; i < 500; i++) {
                    byte[] message = new byte[1 + random.nextInt(5000)];
                    random.nextBytes(message);
                    socket.getOutputStream().write(message);
                    byte[] back = socket.getInputStream().readNBytes(message.length);
                    require(Arrays.equals(message, back), "message " + i);
                    digest.update(back);
                }
                byte[] bulk = new byte[BULK];
                random.nextBytes(bulk);
                Thread writer = new Thread(() -> {
                    try {
                        socket.getOutputStream().write(bulk);
                    } catch (Exception e) {
                        e.printStackTrace();
                    }
                });
                writer.start();
                byte[] back = socket.getInputStream().readNBytes(BULK);
                writer.join();
                require(Arrays.equals(bulk, back), "bulk");
                digest.update(back);
                socket.shutdownOutput();
                require(socket.getInputStream().read() == -1, "end of stream");
            }
        }
        System.out.println("blocking " + HexFormat.of().formatHex(digest.digest()));
    }

    /**
     * Non-blocking channel: connects, writes and reads as the selector allows. Or it connects first: where Java
     * itself makes an SDP socket of a channel's, it forgets that this one does not block.
     */
    static void channelClient(int port, boolean connectsFirst) throws Exception {
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        Selector selector = Selector.open();
        SocketChannel channel = SocketChannel.open();
        if (connectsFirst) {
            channel.connect(new InetSocketAddress(ADDRESS, port));
        }
        channel.configureBlocking(false);
        if (!connectsFirst && !channel.connect(new InetSocketAddress(ADDRESS, port))) {
            SelectionKey connecting = channel.register(selector, SelectionKey.OP_CONNECT);
            selector.select();
            require(channel.finishConnect(), "connect");
            connecting.interestOps(0);
        }
        Random random = new Random(99);
        for (int i = 0; i < 400; i++) {
            byte[] message = new byte[i == 399 ? BULK : 1 + random.nextInt(9000)];
            random.nextBytes(message);
            byte[] back = exchange(selector, channel, message);
            require(Arrays.equals(message, back), "message " + i);
            digest.update(back);
        }
        channel.close();
        System.out.println("nio " + HexFormat.of().formatHex(digest.digest()));
    }

    static byte[] exchange(Selector selector, SocketChannel channel, byte[] message) throws Exception {
        ByteBuffer out = ByteBuffer.wrap(message);
        ByteBuffer in = ByteBuffer.allocate(message.length);
        while (in.hasRemaining()) {
            int interest = SelectionKey.OP_READ | (out.hasRemaining() ? SelectionKey.OP_WRITE : 0);
            channel.register(selector, interest);
            selector.select();
            selector.selectedKeys().clear();
            if (out.hasRemaining()) {
                channel.write(out);
            }
            require(channel.read(in) >= 0, "early end of stream");
        }
        return in.array();
    }

    static void require(boolean holds, String what) {
        if (!holds) {
            System.err.println("MISMATCH: " + what);
            System.exit(1);
        }
    }
}
